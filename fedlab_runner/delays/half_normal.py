"""Half-normal delays, as in Feddle's experiments."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.delays.base import Delay, whole_rounds
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class HalfNormalDelay(Delay):
    """The absolute value of a normal draw with mean 0 and deviation `std`, rounded down.

    On average that is 3.5 rounds for std 5 and 15.5 for std 20 (4.0 and 16.0 before rounding).
    """

    std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, std=self.std)

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        return whole_rounds(np.abs(rng.normal(0.0, self.std, len(clients))))
