"""Exponential delays."""

import math
from dataclasses import dataclass

import numpy as np

from fedlab_runner.delays.base import Delay, _whole


@dataclass(frozen=True)
class ExponentialDelay(Delay):
    """Exponential with the given mean, in rounds before they are rounded down."""

    mean: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mean < math.inf:
            raise ValueError(f"mean must be finite and >= 0, got {self.mean}")

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        return _whole(rng.exponential(self.mean, len(clients)))
