"""Cosine annealing (Loshchilov and Hutter, ICLR 2017), without restarts. https://arxiv.org/abs/1608.03983"""

import math
from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule


@dataclass(frozen=True)
class CosineLR(LRSchedule):
    """Half a cosine from 1 in round 0 to `final` in round `rounds`, the first that is not run; `final` from there on.

    So no round that is run has the factor 0, even if `final` is 0.
    """

    rounds: int
    final: float

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be >= 1, got {self.rounds}")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final must be >= 0 and <= 1, got {self.final}")

    def factor(self, round: int) -> float:
        progress = min(round / self.rounds, 1.0)
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * progress)) / 2.0
