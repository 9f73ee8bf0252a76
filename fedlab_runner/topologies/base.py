"""Topologies: which clients can reach each other, one a file, and what they share."""

from typing import Protocol

import numpy as np


class Topology(Protocol):
    """A rule that links clients."""

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        """The adjacency [N, N] bool, symmetric."""
        ...


def from_edges(num_clients: int, edges: np.ndarray) -> np.ndarray:
    """The symmetric adjacency [N, N] with these links [m, 2]; a link of a client to itself is none."""
    linked = np.zeros((num_clients, num_clients), bool)
    linked[edges[:, 0], edges[:, 1]] = linked[edges[:, 1], edges[:, 0]] = True
    np.fill_diagonal(linked, False)
    return linked


def unreachable(linked: np.ndarray) -> np.ndarray:
    """The clients that client 0 cannot reach over any number of links."""
    reached = np.zeros(len(linked), bool)
    reached[0], before = True, 0
    while before < (before := int(reached.sum())):
        reached |= linked[reached].any(0)
    return np.flatnonzero(~reached)


def describe(linked: np.ndarray) -> str:
    """One line for the log."""
    degrees = linked.sum(1)
    return f"{len(linked)} clients, {int(degrees.sum()) // 2} links, {degrees.min()} to {degrees.max()} each"
