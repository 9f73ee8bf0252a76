"""Half-normal delays, those of Feddle's experiments."""

import math
from dataclasses import dataclass

import numpy as np

from fedlab_runner.delays.base import Delay, _whole


@dataclass(frozen=True)
class HalfNormalDelay(Delay):
    """|N(0, std)| rounded down: on average 3.5 rounds for std 5 and 15.5 for std 20 (4.0 and 16.0 before rounding)."""

    std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.std < math.inf:
            raise ValueError(f"std must be finite and >= 0, got {self.std}")

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        return _whole(np.abs(rng.normal(0.0, self.std, len(clients))))
