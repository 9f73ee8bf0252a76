"""Uniform delays."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.delays.base import Delay
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class UniformDelay(Delay):
    """A whole number of rounds from `low` to `high`, both included, all equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, low=self.low)
        if self.high < self.low:
            raise ValueError(f"high must be >= low ({self.low}), got {self.high}")

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        return rng.integers(self.low, self.high, len(clients), np.int64, endpoint=True)
