"""What a cohort gives to its executor, and an executor that gives back what is not finite."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedlab_runner.core.federation import Federation
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop


def work_of(fed: Federation, **how: Any) -> Work:
    """The local training of all clients, as its executor gets it; nothing is trained."""
    caught: list[Work] = []

    class Catching(Loop):
        def train(self, work: Work) -> Any:
            caught.append(work)
            return work.starts().clone(), work.start.new_zeros(len(work.ids))

    fed.trainer.executor = Catching(compile=False)
    fed.cohort(np.arange(fed.num_clients)).train(fed.family.init(0), **how)
    return caught[0]


BAD, ROUND = 3, 2  # the client, and the round counted from 0


@dataclass(frozen=True)
class Poisoned(Loop):
    """A loop in which one client's training gives one value that is not finite, or a loss."""

    value: float = float("nan")
    into: str = "model"
    round: int = ROUND
    client: int = BAD
    column: int = 1

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        y, losses = super().train(work)
        for k in np.flatnonzero(work.ids == self.client) if work.round == self.round else ():
            if self.into == "model":
                y[k, self.column] = self.value
            else:
                losses[k] = self.value
        return y, losses
