"""Exponential delays."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.delays.base import Delay, whole_rounds
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class ExponentialDelay(Delay):
    """Exponential with mean `mean` in rounds, rounded down."""

    mean: float

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, mean=self.mean)

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        return whole_rounds(rng.exponential(self.mean, len(clients)))
