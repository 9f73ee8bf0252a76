"""Step decay."""

from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule


@dataclass(frozen=True)
class StepLR(LRSchedule):
    """Multiplied by `decay` after every `every` rounds."""

    every: int
    decay: float

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be >= 1, got {self.every}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be > 0 and <= 1, got {self.decay}")

    def factor(self, round: int) -> float:
        return float(self.decay ** (round // self.every))
