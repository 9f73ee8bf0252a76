"""Linear warm-up and cosine annealing (Goyal et al., 2017; Loshchilov and Hutter, ICLR 2017)."""

import math
from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule
from fedlab_runner.utils.validate import at_least, within


@dataclass(frozen=True)
class WarmupCosineLR(LRSchedule):
    """A linear rise to 1 in round `warmup`, then half a cosine to `final` in round `rounds`, then `final`.

    Round 0 has the factor 1 / (warmup + 1), so that no round of the run has the factor 0.
    """

    warmup: int
    rounds: int
    final: float

    def __post_init__(self) -> None:
        at_least(1, rounds=self.rounds)
        if not 0 <= self.warmup < self.rounds:
            raise ValueError(f"warmup must be >= 0 and < rounds ({self.rounds}), got {self.warmup}")
        within("[0, 1]", final=self.final)

    def factor(self, round: int) -> float:
        if round < self.warmup:
            return (round + 1) / (self.warmup + 1)
        progress = min((round - self.warmup) / (self.rounds - self.warmup), 1.0)
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * progress)) / 2.0
