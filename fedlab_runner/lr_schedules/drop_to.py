"""One drop to a given learning rate (FedWalk, 2024, section 5.1: 1e-5 from round 100 on, the first being 1)."""

from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule


@dataclass(frozen=True)
class DropToLR(LRSchedule):
    """The learning rate `lr` before round `round`, and `final_lr`, whatever it was, from that round on."""

    round: int
    final_lr: float
    lr: float

    def __post_init__(self) -> None:
        if self.round < 0:
            raise ValueError(f"round must be >= 0, got {self.round}")
        for name in ("final_lr", "lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")

    def factor(self, round: int) -> float:
        return 1.0 if round < self.round else self.final_lr / self.lr
