"""No delays: the synchronous case."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlab_runner.delays.base import Delay


@dataclass(frozen=True)
class NoDelay(Delay):
    """Every update arrives in the round of its dispatch."""

    varies: ClassVar[bool] = False

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        return np.zeros(len(clients), np.int64)
