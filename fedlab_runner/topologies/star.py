"""A star."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.topologies.base import from_edges


@dataclass(frozen=True)
class Star:
    """All clients reach one, `center`, and only that one."""

    center: int

    def __post_init__(self) -> None:
        if self.center < 0:
            raise ValueError(f"center must be >= 0, got {self.center}")

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        """The adjacency [N, N]; ValueError if there is no such client."""
        if self.center >= num_clients:
            raise ValueError(f"center must be an id below the number of clients ({num_clients}), got {self.center}")
        ids = np.arange(num_clients)
        return from_edges(num_clients, np.stack([ids, np.full_like(ids, self.center)], 1))
