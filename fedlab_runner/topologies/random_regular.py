"""A random graph in which all clients have the same number of neighbours (Steger and Wormald, 1999; as in networkx).

https://doi.org/10.1017/S0963548399003867
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.topologies.base import Topology
from fedlab_runner.topologies.graphs import unreachable
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class RandomRegular(Topology):
    """A random connected graph in which each client has `degree` neighbours, drawn nearly uniformly."""

    degree: int

    def __post_init__(self) -> None:
        at_least(2, degree=self.degree)  # fewer do not connect more than two clients

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        n, degree = num_clients, self.degree
        if degree >= n or n * degree % 2:
            raise ValueError(f"degree must be less than the {n} clients, and even if their number is odd, got {degree}")
        import networkx  # slow to import, and only this choice needs it

        # networkx takes minutes for dense graphs, so it draws the sparser of the graph and its complement
        sparse = min(degree, n - 1 - degree)
        while True:
            graph = networkx.random_regular_graph(sparse, n, seed=int(rng.integers(2**63)))
            linked: np.ndarray = networkx.to_numpy_array(graph, nodelist=range(n), dtype=bool)
            if sparse < degree:
                linked = ~linked & ~np.eye(n, dtype=bool)
            if not len(unreachable(linked)):
                return linked
