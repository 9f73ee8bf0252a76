"""Learning-rate schedules: how the clients' learning rate changes from round to round, one a file."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class LRSchedule(ABC):
    """What the clients' learning rate is multiplied by in each round."""

    @abstractmethod
    def factor(self, round: int) -> float:
        """The factor of the clients that start in this round; rounds count from 0."""
