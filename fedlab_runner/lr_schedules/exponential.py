"""Exponential decay."""

from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule


@dataclass(frozen=True)
class ExponentialLR(LRSchedule):
    """Multiplied by `decay` after every round."""

    decay: float

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be > 0 and <= 1, got {self.decay}")

    def factor(self, round: int) -> float:
        return float(self.decay**round)
