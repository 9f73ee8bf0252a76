"""PFNM's matching (Yurochkin et al., ICML 2019, sections 3.2 and 3.3) as FedMA and HyFEM use it, neuron by neuron."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import linear_sum_assignment

Array = np.ndarray


class Neurons(NamedTuple):
    """A client's neurons."""

    v: Array  # [l, d], on the server's columns; anything where the client lacks a column
    has: Array  # [d] bool, the columns that the client has
    weight: float = 1.0  # p_m, in means


class Others(NamedTuple):
    """What the other clients' neurons make of a server neuron."""

    total: Array  # [d], the weighted sum of the entries
    mass: Array  # [d], the sum of the weights of those that have the entry
    count: int  # of clients on the neuron


class Cost(Protocol):
    """What an assignment costs, each for a neuron v [d] on the columns of its client."""

    def existing(self, v: Array, others: Others, num_clients: int) -> float:
        """To a neuron that other clients make."""
        ...

    def new(self, v: Array, k: int, num_clients: int) -> float:
        """To the k-th new neuron, k = 1, 2, ..."""
        ...


class PFNM(NamedTuple):
    """Minus the gain in the posterior of the beta-Bernoulli process (Eq 8 and 9 of PFNM)."""

    sigma: float  # of a client's neuron around the server's
    sigma0: float  # of a server's neuron around mu0
    gamma: float
    mu0: Array  # [d], on the columns of the client at hand

    def existing(self, v: Array, others: Others, num_clients: int) -> float:
        p, p0 = 1 / self.sigma**2, 1 / self.sigma0**2
        s, g = p0 + p * others.mass, p0 * self.mu0 + p * others.total  # precision and natural mean
        gain = ((p * v + g) ** 2 / (p + s) - g**2 / s).sum()
        popular = min(others.count, 10)  # at most 10, and the log once: as in the authors' code (the paper: twice)
        return -float(gain) - math.log(popular / max(num_clients - popular, 1))

    def new(self, v: Array, k: int, num_clients: int) -> float:
        p, p0 = 1 / self.sigma**2, 1 / self.sigma0**2
        gain = ((p * v + p0 * self.mu0) ** 2 / (p + p0) - p0 * self.mu0**2).sum()
        return -float(gain) + 2 * math.log(k) - 2 * math.log(self.gamma / num_clients)


class SquaredDistance(NamedTuple):
    """1/2 ||v - mean||^2 (HyFEM, Eq 5), with 0 in entries that nobody has; a new neuron costs 1/2 ||v||^2 + nu."""

    nu: float

    def existing(self, v: Array, others: Others, num_clients: int) -> float:
        mean = np.where(others.mass > 0, others.total / np.where(others.mass > 0, others.mass, 1), 0)
        return float(((v - mean) ** 2).sum()) / 2

    def new(self, v: Array, k: int, num_clients: int) -> float:
        return float((v**2).sum()) / 2 + self.nu


def match(
    clients: Sequence[Neurons],
    cost: Callable[[Array], Cost],
    sweeps: int,
    rng: np.random.Generator,
    limit: int,
    start: Sequence[Array] | None = None,
    movable: Sequence[int] | None = None,
    shared: int = 0,
) -> list[Array]:
    """The server neuron of each client neuron: int [l] for each client.

    `cost(has)` is the cost on the columns [d] bool of a client. The assignments begin as `start`, or client after
    client; then in each sweep the `movable` clients, in random order, are taken out and assigned again, until a sweep
    changes nothing. The server has up to `limit` neurons. The last `shared` columns (a bias) are everybody's: they do
    not say that a client can compare itself with a server neuron.
    """
    places: list[Array] = [np.zeros(0, dtype=int) for _ in clients]
    server: list[set[int]] = []  # for each server neuron the clients on it

    def put(j: int) -> None:
        while len(server) <= max(places[j], default=-1):
            server.append(set())
        for i in places[j]:
            server[i].add(j)

    def others(i: int, has: Array) -> Others:
        on = [(clients[m], clients[m].v[list(places[m]).index(i)]) for m in sorted(server[i])]
        total = sum((m.weight * np.where(m.has, v, 0) for m, v in on), np.zeros(len(has)))
        mass = sum((m.weight * m.has for m, _ in on), np.zeros(len(has)))
        return Others(total[has], mass[has], len(on))

    def compares(i: int, has: Array) -> bool:
        """HyFEM, Eq 20: whether the server neuron is not zero on the client's columns."""
        own = np.arange(len(has)) < len(has) - shared
        return any((clients[m].has & has & own).any() for m in server[i])

    def assign(j: int) -> None:
        """Assigns client j, which is on no server neuron, by the Hungarian method (HyFEM, Algorithm 3, line 8)."""
        v, has, _ = clients[j]
        known = [i for i, on in enumerate(server) if on]
        if not known:  # nothing to compare with: the neurons keep their places
            places[j] = np.arange(len(v))
            return put(j)
        of, rows = cost(has), [row[has] for row in v]
        ranks = range(1, min(len(v), limit - len(known)) + 1)
        table = np.zeros((len(v), len(known) + len(ranks)))
        for column, i in enumerate(known):
            made, comparable = others(i, has), compares(i, has)
            for row, neuron in enumerate(rows):
                fits = of.existing(neuron, made, len(clients)) if comparable else of.new(neuron, 1, len(clients))
                table[row, column] = fits
        for k in ranks:
            for row, neuron in enumerate(rows):
                table[row, len(known) + k - 1] = of.new(neuron, k, len(clients))
        before, end = places[j], len(server)
        places[j] = np.zeros(len(v), dtype=int)
        for row, column in zip(*linear_sum_assignment(table), strict=True):
            if column < len(known):
                places[j][row] = known[column]
            elif len(before) and before[row] not in known:  # a new neuron gets the old place where that is free,
                places[j][row] = before[row]
            else:  # or a place behind all others
                places[j][row], end = end, end + 1
        put(j)
        kept = [i for i, on in enumerate(server) if on]  # neurons without a client are deleted
        server[:] = [server[i] for i in kept]
        places[:] = [np.array([kept.index(i) for i in own], dtype=int) for own in places]

    for j in range(len(clients)):
        if start is None:
            assign(j)
        else:
            places[j] = np.array(start[j])
            put(j)
    order = np.arange(len(clients)) if movable is None else np.array(movable)
    for _ in range(sweeps if len(clients) > 1 else 0):
        old = [own.copy() for own in places]
        for j in rng.permutation(order):
            for on in server:
                on.discard(j)
            assign(j)
        if all((a == b).all() for a, b in zip(old, places, strict=True)):
            break
    return places
