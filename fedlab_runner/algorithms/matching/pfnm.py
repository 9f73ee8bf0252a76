"""Matches the neurons of several clients to one list of server neurons, client by client, by the Hungarian method.

The rule is that of PFNM (Yurochkin et al., ICML 2019, https://arxiv.org/abs/1905.12022), as FedMA and HyFEM use it.
Shape letters: J clients, L server neurons, l neurons of a client, d columns of a server neuron, e columns that a client
has.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.matching.assignment import hungarian
from fedlab_runner.core.products import product
from fedlab_runner.utils.torch_settings import one_thread

MAX_POPULARITY = 10  # clients on a neuron, above which its popularity stays the same (the authors' code)
MIN_SHARED_FLOPS = 5e7  # floating-point operations of a client's product, from which on threads share it


class Neurons(NamedTuple):
    """One client's neurons."""

    rows: Tensor  # [l, e]
    columns: Tensor  # [e] int64, their places among the server's d columns
    weight: float  # of the client in the server's mean


class Server(NamedTuple):
    """The server's neurons, as sums over the clients assigned to them, on the columns of the present client."""

    total: Tensor  # [L, e], weighted sum of the rows
    mass: Tensor  # [L, e], sum of the weights of the clients with the entry; [L, 1] where all have it
    holders: Tensor  # [L], clients assigned to the neuron
    covered: Tensor | None  # [L] bool, whether an assigned client has one of the columns; None: yes for all


class Gain(Protocol):
    """The gain from assigning a client's neurons to server neurons."""

    def existing(self, v: Tensor, square: Tensor, server: Server, columns: Tensor, num_clients: int) -> Tensor:
        """The gain [l, L] of neurons v [l, e] with |v|^2 [l] on the server's neurons."""
        ...

    def new(self, v: Tensor, square: Tensor, columns: Tensor, num_clients: int, most: int) -> Tensor:
        """The gain [l, most] of neurons v [l, e] with |v|^2 [l] on the first, second, ... new neuron."""
        ...


@dataclass(frozen=True)
class SquaredDistance:
    """Minus half the squared distance to the mean of the server's neuron. The mean is 0 in entries that no client has.

    A new neuron costs half the squared length and `penalty`.
    """

    penalty: float

    def existing(self, v: Tensor, square: Tensor, server: Server, columns: Tensor, num_clients: int) -> Tensor:
        mass, rows = server.mass.clamp_min(torch.finfo(v.dtype).tiny), server.total
        if mass.shape[1] > 1:
            rows, mass = rows / mass, mass.new_ones(len(rows), 1)  # else the code divides products, which are smaller
        mean_square = _squares(rows)
        gain = product(v, rows.T).div_(mass.T).sub_(mean_square / mass.T.square() / 2).sub_(square.unsqueeze(1) / 2)
        if server.covered is None:
            return gain
        return gain.where(server.covered, self.new(v, square, columns, num_clients, 1))

    def new(self, v: Tensor, square: Tensor, columns: Tensor, num_clients: int, most: int) -> Tensor:
        return (-square.unsqueeze(1) / 2 - self.penalty).expand(-1, most)


@dataclass(frozen=True)
class PFNM:
    """The posterior gain of the beta-Bernoulli process.

    A server neuron has the prior N(mu0, sigma0^2), a client's neuron the distribution N(server neuron, sigma^2). A
    larger `gamma` makes more new neurons. Clients count alike. The log of a neuron's popularity counts once, as in the
    authors' code.
    """

    sigma: float
    sigma0: float
    gamma: float
    mu0: Tensor  # [d]

    def existing(self, v: Tensor, square: Tensor, server: Server, columns: Tensor, num_clients: int) -> Tensor:
        p, p0, mu0 = self.sigma**-2, self.sigma0**-2, self.mu0[columns]
        precision, natural = p0 + p * server.mass, p0 * mu0 + p * server.total  # s and g [L, e]
        inverse = 1 / (p + precision)
        if inverse.shape[1] == 1:  # all columns alike
            own, common = square.unsqueeze(1) * inverse.T, product(v, natural.T).mul_(inverse.T)
            length = _squares(natural) * (inverse - 1 / precision).squeeze(1)
        else:
            own, common = product(v.square(), inverse.T), product(v, (natural * inverse).T)
            length = (natural.square() * (inverse - 1 / precision)).sum(1)
        gain = common.mul_(2 * p).add_(own, alpha=p * p).add_(length)
        count = server.holders.clamp(1, MAX_POPULARITY).to(v.dtype)
        gain += (count / (num_clients - count).clamp_min(1)).log()
        if server.covered is None:
            return gain
        return gain.where(server.covered, self.new(v, square, columns, num_clients, 1))

    def new(self, v: Tensor, square: Tensor, columns: Tensor, num_clients: int, most: int) -> Tensor:
        p, p0, mu0 = self.sigma**-2, self.sigma0**-2, self.mu0[columns]
        prior = mu0.square().sum()
        gain = (p * p * square + 2 * p * p0 * (v @ mu0) + p0 * p0 * prior) / (p + p0) - p0 * prior
        rank = torch.arange(1, most + 1, dtype=v.dtype, device=v.device)
        return gain.unsqueeze(1) - 2 * rank.log() + 2 * math.log(self.gamma / num_clients)


class Matching(NamedTuple):
    """The server neuron of each client neuron."""

    assignments: list[np.ndarray]  # of each client [l] int64, all different
    width: int  # L
    gain: float  # of the last sweep, summed over clients
    flops: int  # of gains and assignments; an assignment of l to n neurons counts as l^2 n


def match(
    clients: Sequence[Neurons],
    gain: Gain,
    *,
    num_columns: int,
    sweeps: int,
    rng: np.random.Generator,
    limit: int,
    start: Sequence[np.ndarray] | None = None,
    movable: Sequence[int] | None = None,
    shared: int = 0,
) -> Matching:
    """Assigns the neurons of J >= 1 clients to server neurons so that the total gain rises.

    The assignments begin as `start`. Without `start` the first client's neurons become the server's, and the other
    clients follow in order. Then come up to `sweeps` sweeps, until a sweep changes nothing. A sweep takes out each
    client (of the `movable`), in random order, and assigns it again to the neurons of the other clients.

    The server gains neurons up to `limit` >= max l and loses neurons without clients: max l <= L <= min(limit, sum l).
    All clients have the last `shared` columns (a bias). A client compares its neurons only with server neurons with
    which it has another column in common.
    """
    state, total = _State(clients, gain, num_columns, limit, shared), 0.0
    moving = np.arange(len(clients)) if movable is None else np.asarray(movable, dtype=np.int64)
    flops = 2 * max(client.rows.numel() * len(client.rows) for client in clients)
    with one_thread() if flops < MIN_SHARED_FLOPS else nullcontext():
        if start is None:
            for j in range(len(clients)):
                state.assign(j)
        else:
            state.begin(start)
        for _ in range(sweeps if len(clients) > 1 else 0):
            before, total = [a.copy() for a in state.assignments], 0.0
            for j in rng.permutation(moving).tolist():
                state.remove(j)
                total += state.assign(j)
            if all(np.array_equal(old, new) for old, new in zip(before, state.assignments, strict=True)):
                break
    return Matching(state.assignments, state.width, total, state.flops)


class _State:
    """The server's neurons while clients are added and removed."""

    def __init__(self, clients: Sequence[Neurons], gain: Gain, num_columns: int, limit: int, shared: int) -> None:
        self._clients, self._gain, self._limit, self._shared = clients, gain, limit, shared
        rows, count = clients[0].rows, len(clients)
        self._total = rows.new_zeros(0, num_columns)
        self._held = rows.new_zeros(0, count)  # 1 where a client is on a neuron [L, J]
        self._holders = np.zeros(0, np.int64)  # clients on each neuron [L]
        self._weights = rows.new_tensor([client.weight for client in clients]).unsqueeze(1)
        everything = torch.arange(num_columns, device=rows.device)
        self._whole = [torch.equal(client.columns, everything) for client in clients]
        self._alike = all(self._whole) and shared < num_columns
        # 1 where a client has a column [J, d]; unused if all clients have all columns.
        self._has = rows.new_zeros(count, num_columns)
        if not self._alike:
            for has, client in zip(self._has, clients, strict=True):
                has[client.columns] = 1
        self._squares = [_squares(client.rows) for client in clients]
        self._new: dict[int, Tensor] = {}  # the gain of new neurons, by client
        self.assignments = [np.empty(0, np.int64) for _ in clients]
        self.flops = 0

    @property
    def width(self) -> int:
        """L, the number of server neurons."""
        return len(self._holders)

    def begin(self, assignments: Sequence[np.ndarray]) -> None:
        """Adds all clients with these assignments."""
        for j, assignment in enumerate(assignments):
            self._add(j, assignment, 1)

    def assign(self, j: int) -> float:
        """Adds client j where it gains most, and returns the gain."""
        (v, columns, _), square, count = self._clients[j], self._squares[j], len(self._clients)
        known = np.flatnonzero(self._holders)
        if not len(known):  # nothing to compare: the neurons keep their places
            self._add(j, np.arange(len(v)), 1)
            return 0.0
        most = min(len(v), self._limit - len(known))
        abandoned = len(known) < self.width
        if abandoned:
            self._total[self._at(j, self._holders == 0)] = 0  # exactly zero: rounding leaves a remainder
        total, held, covered = self._of(j, self._total), self._held, None
        if abandoned or not self._alike:
            total, held = (t.index_select(0, self._at(j, known)) for t in (total, held))
        mass = held @ self._weights
        if not self._alike:
            covered = held @ self._has.index_select(1, columns[: len(columns) - self._shared]).sum(1) > 0
            mass = held @ (self._weights * self._of(j, self._has))
            total.masked_fill_(mass == 0, 0)  # exactly zero, in columns that no client has
        server = Server(total, mass, self._at(j, self._holders[known]), covered)
        gains = self._gain.existing(v, square, server, columns, count)
        if most:
            if j not in self._new:
                self._new[j] = self._gain.new(v, square, columns, count, len(v)).contiguous()
            gains = torch.cat([gains, self._new[j][:, :most]], 1)
        products = 2 if isinstance(self._gain, PFNM) and mass.shape[1] > 1 else 1  # of matrices, in `existing`
        self.flops += 2 * products * len(v) * len(known) * v.shape[1] + len(v) ** 2 * (len(known) + most)
        chosen = hungarian(gains)
        self._add(j, self._places(j, chosen, known), 1)
        if abandoned:
            self._drop_empty()
        return float(gains.cpu().numpy()[np.arange(len(v)), chosen].sum())

    def remove(self, j: int) -> None:
        """Takes client j out. Server neurons without clients stay until the next `assign`."""
        self._add(j, self.assignments[j], -1)

    def _places(self, j: int, chosen: np.ndarray, known: np.ndarray) -> np.ndarray:
        """The server neurons of the chosen columns of gains. A new neuron goes to the client's old place if that is
        free, else behind all others.
        """
        places: np.ndarray = known[np.minimum(chosen, len(known) - 1)]
        new = np.flatnonzero(chosen >= len(known))
        if len(new):
            old = self.assignments[j][new] if len(self.assignments[j]) else np.full(len(new), -1)
            stays = (old >= 0) & ~np.isin(old, known)
            places[new] = np.where(stays, old, self.width - 1 + np.cumsum(~stays))
        return places

    def _of(self, j: int, values: Tensor) -> Tensor:
        """A client's columns [.., e] of values [.., d]."""
        return values if self._whole[j] else values.index_select(1, self._clients[j].columns)

    def _at(self, j: int, which: np.ndarray) -> Tensor:
        """Indices or a mask of server neurons, on the device of the client's neurons."""
        return torch.from_numpy(which).to(self._clients[j].rows.device)

    def _drop_empty(self) -> None:
        """Deletes the neurons that no client has."""
        kept = self._holders > 0
        if not kept.all():
            new_index, rows = np.cumsum(kept) - 1, self._at(0, kept)
            self._total, self._held, self._holders = self._total[rows], self._held[rows], self._holders[kept]
            self.assignments = [new_index[a] for a in self.assignments]

    def _add(self, j: int, assignment: np.ndarray, sign: int) -> None:
        """Adds a client's neurons to their server neurons (`sign` 1), or takes them out (-1)."""
        v, columns, weight = self._clients[j]
        more = int(assignment.max(initial=-1)) + 1 - self.width
        if more > 0:
            self._total, self._held = (torch.cat([t, t.new_zeros(more, t.shape[1])]) for t in (self._total, self._held))
            self._holders = np.pad(self._holders, (0, more))
        rows = self._at(j, assignment)
        if not self._whole[j]:
            v = v.new_zeros(len(v), self._total.shape[1]).index_copy_(1, columns, v)
        self._total.index_add_(0, rows, v, alpha=sign * weight)
        self._held[:, j].index_fill_(0, rows, float(sign > 0))
        self._holders[assignment] += sign
        if sign > 0:
            self.assignments[j] = assignment


def _squares(rows: Tensor) -> Tensor:
    """Squared lengths [n] of rows [n, d]."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths.square()
