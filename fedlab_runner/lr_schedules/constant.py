"""A constant learning rate."""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.lr_schedules.base import LRSchedule


@dataclass(frozen=True)
class ConstantLR(LRSchedule):
    """The factor is 1 in every round."""

    acts: ClassVar[bool] = False

    def factor(self, round: int) -> float:
        return 1.0
