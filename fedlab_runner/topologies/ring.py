"""A ring: clients linked in the order of their ids."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.topologies.base import Topology
from fedlab_runner.topologies.graphs import from_edges


@dataclass(frozen=True)
class Ring(Topology):
    """Each client reaches the clients with the next smaller and larger id; the last and the first are linked."""

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        ids = np.arange(num_clients)
        return from_edges(num_clients, np.stack([ids, np.roll(ids, -1)], 1))
