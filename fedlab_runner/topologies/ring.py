"""A ring."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.topologies.base import from_edges


@dataclass(frozen=True)
class Ring:
    """Each client reaches the one before and the one after it."""

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        """The adjacency [N, N]."""
        ids = np.arange(num_clients)
        return from_edges(num_clients, np.stack([ids, np.roll(ids, -1)], 1))
