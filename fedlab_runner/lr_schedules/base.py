"""The contract of a learning-rate schedule: how the clients' learning rate changes from round to round.

Each choice is a frozen dataclass in a file of this folder, with conf/lr_schedule/<file>.yaml.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class LRSchedule(ABC):
    """A factor of the clients' learning rate `local.lr` for each round."""

    @abstractmethod
    def factor(self, round: int) -> float:
        """The finite factor >= 0 for the clients that start in `round`, counted from 0.

        A pure function of the fields and the round. The run calls it once in each round; a resumed run begins with a
        later round.
        """
