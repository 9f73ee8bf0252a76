"""A full mesh: the complete graph."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.topologies.base import Topology


@dataclass(frozen=True)
class Mesh(Topology):
    """Each client reaches every other client."""

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        return ~np.eye(num_clients, dtype=bool)
