"""Cosine annealing (Loshchilov and Hutter, ICLR 2017), without restarts. https://arxiv.org/abs/1608.03983"""

import math
from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule
from fedlab_runner.utils.validate import at_least, within


@dataclass(frozen=True)
class CosineLR(LRSchedule):
    """Half a cosine from 1 in round 0 to `final` in round `rounds`, then `final`.

    By default round `rounds` would be the round after the run's last one, so that no round of the run has the factor 0.
    """

    rounds: int
    final: float

    def __post_init__(self) -> None:
        at_least(1, rounds=self.rounds)
        within("[0, 1]", final=self.final)

    def factor(self, round: int) -> float:
        progress = min(round / self.rounds, 1.0)
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * progress)) / 2.0
