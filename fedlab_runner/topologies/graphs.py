"""Graphs of clients as adjacency matrices [N, N] bool, symmetric, with a False diagonal."""

import numpy as np


def from_edges(num_clients: int, edges: np.ndarray) -> np.ndarray:
    """The adjacency [N, N] with these links, pairs of client ids [m, 2]. A link of a client to itself is dropped."""
    linked = np.zeros((num_clients, num_clients), bool)
    linked[edges[:, 0], edges[:, 1]] = linked[edges[:, 1], edges[:, 0]] = True
    np.fill_diagonal(linked, False)
    return linked


def unreachable(linked: np.ndarray) -> np.ndarray:
    """The ids of the clients that client 0 cannot reach over any number of links; empty for a connected graph."""
    reached = np.zeros(len(linked), bool)
    reached[0], before = True, 0
    while before < (before := int(reached.sum())):
        reached |= linked[reached].any(0)
    return np.flatnonzero(~reached)


def describe(linked: np.ndarray) -> str:
    """The numbers of clients and links and the range of degrees, as one line for the log."""
    degrees = linked.sum(1)
    return f"{len(linked)} clients, {int(degrees.sum()) // 2} links, {degrees.min()} to {degrees.max()} each"
