"""One drop to a given learning rate (FedWalk, 2024, section 5.1: 1e-5 from round 100, counted from 1)."""

from dataclasses import dataclass

from fedlab_runner.lr_schedules.base import LRSchedule
from fedlab_runner.utils.validate import above, at_least


@dataclass(frozen=True)
class DropToLR(LRSchedule):
    """The learning rate is `lr` before round `round` and `final_lr` from that round on."""

    round: int
    final_lr: float
    lr: float

    def __post_init__(self) -> None:
        at_least(0, round=self.round)
        above(0, final_lr=self.final_lr, lr=self.lr)

    def factor(self, round: int) -> float:
        return 1.0 if round < self.round else self.final_lr / self.lr
