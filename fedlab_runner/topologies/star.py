"""A star: one client in the middle."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlab_runner.topologies.base import Topology
from fedlab_runner.topologies.graphs import from_edges
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class Star(Topology):
    """Each client reaches the client `center` and no other client; `center` reaches all clients."""

    names_clients: ClassVar[bool] = True
    center: int

    def __post_init__(self) -> None:
        at_least(0, center=self.center)

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        if self.center >= num_clients:
            raise ValueError(f"center must be an id below the number of clients ({num_clients}), got {self.center}")
        ids = np.arange(num_clients)
        return from_edges(num_clients, np.stack([ids, np.full_like(ids, self.center)], 1))
