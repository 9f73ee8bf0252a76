"""A full mesh."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mesh:
    """Everyone reaches everyone."""

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        """The adjacency [N, N]."""
        return ~np.eye(num_clients, dtype=bool)
