"""A random graph in which all clients have the same number of neighbours (Steger and Wormald, 1999).

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
        sparse = min(degree, n - 1 - degree)  # of the graph or of its complement, for which fewer draws fail
        while True:
            linked = _attempt(rng, n, sparse)
            if linked is None:
                continue
            if sparse < degree:
                linked = ~linked & ~np.eye(n, dtype=bool)
            if not len(unreachable(linked)):
                return linked


def _attempt(rng: np.random.Generator, n: int, degree: int) -> np.ndarray | None:
    """Links two random free ends after another, unless these clients are the same or linked. None if only such ends are
    left.

    A pair that cannot be linked goes back among all free ends. Pairing such ends only with each other, as networkx
    does, gives graphs of any size too many triangles: a quarter more at degree 3.
    """
    taken = np.eye(n, dtype=bool)  # no link of a client to itself
    ends = np.repeat(np.arange(n), degree).tolist()  # each client as often as it still needs a neighbour
    misses = 0
    while ends:
        i, j = sorted((rng.random(2) * len(ends)).astype(int).tolist())
        one, other = ends[i], ends[j]
        if not taken[one, other]:
            taken[one, other] = taken[other, one] = True
            misses = 0
            for place in (j, i):  # the last end takes the place
                ends[place] = ends[-1]
                ends.pop()
        elif (misses := misses + 1) > len(ends):
            left = np.unique(ends)
            if taken[np.ix_(left, left)].all():
                return None
            misses = 0
    return taken & ~np.eye(n, dtype=bool)
