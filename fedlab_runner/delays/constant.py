"""The same delay for everyone."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.delays.base import Delay


@dataclass(frozen=True)
class ConstantDelay(Delay):
    """Every update arrives `rounds` rounds after its dispatch."""

    rounds: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 0:
            raise ValueError(f"rounds must be >= 0, got {self.rounds}")

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        return np.full(len(clients), self.rounds, np.int64)
