"""Delays: how many rounds late a client's update arrives, one distribution a file."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Delay(ABC):
    """How many rounds after its dispatch a client's update arrives; 0 is the round in which it was dispatched.

    `draw` says when a delay is drawn: once per `client`, which keeps it, or anew at every `dispatch`.
    """

    draw: str

    def __post_init__(self) -> None:
        if self.draw not in ("client", "dispatch"):
            raise ValueError(f"draw must be 'client' or 'dispatch', got '{self.draw}'")

    @abstractmethod
    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        """The delays, whole rounds >= 0 as int64 [n], of the client ids [n]; the i-th draw is the i-th client's."""


_NEVER = 2**40  # rounds: beyond any run, and small enough to be added to a round


def _whole(rounds: np.ndarray) -> np.ndarray:
    """Delays >= 0 rounded down to whole rounds, none above `_NEVER`."""
    whole: np.ndarray = np.minimum(rounds, _NEVER).astype(np.int64)
    return whole
