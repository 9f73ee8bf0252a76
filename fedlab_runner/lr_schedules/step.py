"""Step decay."""

from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule
from fedlab_runner.utils.validate import at_least, within


@dataclass(frozen=True)
class StepLR(LRSchedule):
    """The factor is multiplied by `decay` after each `every` rounds."""

    every: int
    decay: float

    def __post_init__(self) -> None:
        at_least(1, every=self.every)
        within("(0, 1]", decay=self.decay)

    def factor(self, round: int) -> float:
        return float(self.decay ** (round // self.every))
