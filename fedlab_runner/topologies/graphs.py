"""Graphs of clients as adjacency matrices [N, N] bool, symmetric, with a False diagonal."""

import numpy as np

from fedlab_runner.utils.counting import count_of


def from_edges(num_clients: int, edges: np.ndarray) -> np.ndarray:
    """The adjacency [N, N] with these links, pairs of client ids [m, 2], without links of a client to itself."""
    linked = np.zeros((num_clients, num_clients), bool)
    linked[edges[:, 0], edges[:, 1]] = linked[edges[:, 1], edges[:, 0]] = True
    np.fill_diagonal(linked, False)
    return linked


def unreachable(linked: np.ndarray) -> np.ndarray:
    """The ids of the clients that client 0 cannot reach over any number of links; empty for a connected graph."""
    reached = np.arange(len(linked)) == 0
    new = np.array([0])  # each client is new once, so that its links are read once
    while len(new):
        new = np.flatnonzero(linked[new].any(0) & ~reached)
        reached[new] = True
    return np.flatnonzero(~reached)


def describe(linked: np.ndarray) -> str:
    """The numbers of clients and links, and the range of degrees, in one line for the log."""
    degrees = linked.sum(1)
    least, most = degrees.min(), degrees.max()
    each = f"{least}" if least == most else f"{least} to {most}"
    return f"{count_of(len(linked), 'client')}, {count_of(int(degrees.sum()) // 2, 'link')}, {each} at each client"


def metropolis(linked: np.ndarray) -> np.ndarray:
    """The Metropolis weights [N, N] of a graph: 1 / (1 + the larger degree) for a link, and the rest of each row on the
    diagonal. They are symmetric and non-negative, and rows sum to 1 (Xiao, Boyd and Kim, 2007).
    https://doi.org/10.1016/j.jpdc.2006.08.010
    """
    degrees = linked.sum(1)
    weights: np.ndarray = np.where(linked, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return weights


def spectral_gap(weights: np.ndarray) -> float:
    """1 minus the second largest absolute eigenvalue of symmetric weights [N, N] whose rows sum to 1; 0 if not
    connected.

    The smaller the gap, the longer gossip takes to agree. The gap of one client is 1.
    """
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return 1.0 if len(sizes) == 1 else max(0.0, 1.0 - float(sizes[-2]))
