"""Exponential decay."""

from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule
from fedlab_runner.utils.validate import within


@dataclass(frozen=True)
class ExponentialLR(LRSchedule):
    """The factor is multiplied by `decay` after each round."""

    decay: float

    def __post_init__(self) -> None:
        within("(0, 1]", decay=self.decay)

    def factor(self, round: int) -> float:
        return float(self.decay**round)
