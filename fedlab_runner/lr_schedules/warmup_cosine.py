"""Linear warm-up and cosine annealing (Goyal et al., 2017; Loshchilov and Hutter, ICLR 2017)."""

import math
from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule


@dataclass(frozen=True)
class WarmupCosineLR(LRSchedule):
    """Rises linearly to 1 in round `warmup`, then half a cosine to `final` in round `rounds`; `final` from there on.

    Round 0 has the factor 1 / (warmup + 1), so that no round that is run has the factor 0.
    """

    warmup: int
    rounds: int
    final: float

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be >= 1, got {self.rounds}")
        if not 0 <= self.warmup < self.rounds:
            raise ValueError(f"warmup must be >= 0 and < rounds ({self.rounds}), got {self.warmup}")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final must be >= 0 and <= 1, got {self.final}")

    def factor(self, round: int) -> float:
        if round < self.warmup:
            return (round + 1) / (self.warmup + 1)
        progress = min((round - self.warmup) / (self.rounds - self.warmup), 1.0)
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * progress)) / 2.0
