"""The same delay for every client."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlab_runner.delays.base import Delay
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class ConstantDelay(Delay):
    """Every update arrives `rounds` rounds after its dispatch."""

    varies: ClassVar[bool] = False
    rounds: int

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, rounds=self.rounds)

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        return np.full(len(clients), self.rounds, np.int64)
