"""The contract of a learning-rate schedule: how the clients' learning rate changes from round to round.

Each choice is a frozen dataclass in a file of this folder, with conf/lr_schedule/<file>.yaml.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.utils.contract import require


@dataclass(frozen=True)
class LRSchedule(ABC):
    """A factor of the clients' learning rate `local.lr` for each round."""

    acts: ClassVar[bool] = True
    """False: the factor is always 1, by intent."""

    @abstractmethod
    def factor(self, round: int) -> float:
        """The finite factor >= 0 for the clients that start in `round`, counted from 0.

        A pure function of the fields and the round. The run may ask for any round at any time.
        """


def idle(schedule: LRSchedule, rounds: int) -> bool:
    """Whether a schedule leaves the learning rate at `local.lr` in each of a run's rounds. A single round has none."""
    return schedule.acts and rounds > 1 and all(factor_of(schedule, round) == 1 for round in range(rounds))


def factor_of(schedule: LRSchedule, round: int) -> float:
    """The factor of a round. Raises UserError where it breaks the contract of `LRSchedule.factor`."""
    factor = schedule.factor(round)
    right = isinstance(factor, float | int) and 0 <= factor < math.inf
    require(right, schedule, "factor", f"a finite number >= 0 for round {round}", factor)
    return float(factor)
