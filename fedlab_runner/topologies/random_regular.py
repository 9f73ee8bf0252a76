"""A random graph in which all clients have equally many neighbours."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.topologies.base import from_edges, unreachable

SWAPS = 10  # for each link


@dataclass(frozen=True)
class RandomRegular:
    """`degree` neighbours a client: a ring lattice whose links are swapped in pairs at random, until connected."""

    degree: int

    def __post_init__(self) -> None:
        if self.degree < 2:
            raise ValueError(f"degree must be >= 2 for a connected graph, got {self.degree}")

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        """The adjacency [N, N]; ValueError if there is no such graph."""
        n, k = num_clients, self.degree
        if k >= n or n * k % 2:
            raise ValueError(f"degree must be less than the {n} clients, and even if their number is odd, got {k}")
        ids = np.arange(n)
        edges = [np.stack([ids, (ids + hop) % n], 1) for hop in range(1, k // 2 + 1)]
        if k % 2:
            edges.append(np.stack([ids[: n // 2], ids[: n // 2] + n // 2], 1))
        links = np.concatenate(edges)
        while True:
            linked = _swapped(rng, links, n)
            if not len(unreachable(linked)):
                return linked


def _swapped(rng: np.random.Generator, links: np.ndarray, num_clients: int) -> np.ndarray:
    """Links a-b and c-d become a-d and c-b wherever that makes no double link; the degrees stay."""
    links, linked = links.copy(), from_edges(num_clients, links)
    for first, second, turn in rng.integers(len(links), size=(SWAPS * len(links), 3)).tolist():
        (a, b), (c, d) = links[first], links[second][:: 1 if turn % 2 else -1]
        if len({a, b, c, d}) == 4 and not linked[a, d] and not linked[c, b]:
            linked[a, b] = linked[b, a] = linked[c, d] = linked[d, c] = False
            linked[a, d] = linked[d, a] = linked[c, b] = linked[b, c] = True
            links[first], links[second] = (a, d), (c, b)
    return linked
