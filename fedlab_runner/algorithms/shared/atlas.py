"""Feddle's model atlas: clients' updates kept as directions (anchors), and how they are combined.

There are M anchors of P values each. They may lie in host memory: `combine` and `project` read them in chunks.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedlab_runner.executors.team import Team

COSINE_BLOCK = 2**20  # values
MIN_SHARED_VALUES = 2**21  # of the anchors, from which on several threads read parts of them


class Atlas(NamedTuple):
    """Up to `size` anchors; a client may own several."""

    anchors: Tensor  # a_m [M, P], not normalised
    scores: Tensor  # s_m [M] float64, |c_m| of the last search; infinite before the first
    arrival: Tensor  # [M] int64, the anchors' numbers in order of arrival
    clients: Tensor  # [M] int64
    rounds: Tensor  # [M] int64, the round in which the client received the server model

    @staticmethod
    def empty(like: Tensor) -> "Atlas":
        """An atlas without anchors, for parameters [P]."""
        none = torch.empty(0, dtype=torch.int64)
        return Atlas(like.new_empty(0, len(like)), torch.empty(0, dtype=torch.float64), none, none, none)

    def add(
        self, deltas: Tensor, clients: list[int], rounds: list[int], *, size: int, by_score: bool, device: torch.device
    ) -> "Atlas":
        """The atlas, on `device`, with updates [A, P] added in order. In a full atlas each replaces an anchor
        (Algorithm 1, UpdateAtlas).

        The replaced anchor is the first one with the lowest score. Without `by_score`, or before the first search, it
        is the oldest. The atlas leaves out an update of zero length, which has no direction.
        """
        anchors, scores, arrival = list(self.anchors.to(device)), self.scores.tolist(), self.arrival.tolist()
        owners, ages = self.clients.tolist(), self.rounds.tolist()
        for delta, client, round, moves in zip(deltas, clients, rounds, moving(deltas).tolist(), strict=True):
            if not moves:
                continue
            number = max(arrival, default=-1) + 1
            if len(anchors) < size:
                for column in (anchors, scores, arrival, owners, ages):
                    column.append(None)
                m = len(anchors) - 1
            elif by_score and min(scores) < float("inf"):
                m = scores.index(min(scores))
            else:
                m = arrival.index(min(arrival))
            anchors[m], scores[m], arrival[m] = delta, float("inf"), number
            owners[m], ages[m] = client, round
        if not anchors:
            return self
        stack = self.anchors.new_empty(len(anchors), self.anchors.shape[1], device=device)
        for row, anchor in zip(stack, anchors, strict=True):  # torch.stack would use one thread
            row.copy_(anchor)
        numbers = (torch.tensor(column, dtype=torch.int64) for column in (arrival, owners, ages))
        return Atlas(stack, torch.tensor(scores, dtype=torch.float64), *numbers)

    def scales(self, normalise: bool) -> Tensor:
        """The factors [M] that normalise the anchors: the median length / the anchor's length (Eq 4), or 1."""
        if not normalise:
            return self.anchors.new_ones(len(self.anchors))
        lengths: Tensor = torch.linalg.vector_norm(self.anchors, dim=1)
        return lengths.quantile(0.5) / lengths  # for even M the mean of the two middle lengths


def moving(deltas: Tensor) -> Tensor:
    """Which updates [A, P] have a direction, that is, a length above zero: [A] bool. Values so small that their squares
    are zero have none.
    """
    found: Tensor = torch.linalg.vector_norm(deltas, dim=1) != 0
    return found


def cosine(one: Tensor, other: Tensor) -> float:
    """The cosine of two vectors [n], in float64, without a float64 copy of a whole vector; 0 where one is 0."""
    sums = torch.zeros(3, dtype=torch.float64, device=one.device)
    for pair in zip(torch.split(one, COSINE_BLOCK), torch.split(other, COSINE_BLOCK), strict=True):
        a, b = (part.double() for part in pair)
        sums += torch.stack([a @ b, a @ a, b @ b])
    dot, first, second = sums.tolist()
    return dot / math.sqrt(first * second) if first and second else 0.0


class AtlasReader:
    """Reads an atlas's anchors a_m [M, P] for sums and inner products. Each thread of a team takes some columns."""

    def __init__(self, anchors: Tensor, chunk_size: int | None, device: torch.device, team: Team) -> None:
        """`device` is that of the vectors x and the gradients."""
        self._anchors, self._chunk_size, self._team = anchors, chunk_size, team
        shared = device.type == "cpu" and anchors.numel() >= MIN_SHARED_VALUES
        self._columns = team.ranges(anchors.shape[1]) if shared else [slice(None)]

    def combine(self, x: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        """Writes x + sum_m weights_m a_m (Eq 15) into out [P], and returns it."""

        def of_part(part: int) -> None:
            its = self._columns[part]
            combine(x[its], self._anchors[:, its], weights, self._chunk_size, out[its])

        self._team.each(of_part, len(self._columns))
        return out

    def project(self, gradient: Tensor) -> Tensor:
        """The inner product of a gradient [P] with each anchor [M] (Eq 16)."""

        def of_part(part: int) -> Tensor:
            its = self._columns[part]
            return project(gradient[its], self._anchors[:, its], self._chunk_size)

        found = self._team.each(of_part, len(self._columns))
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)


def combine(
    x: Tensor, anchors: Tensor, weights: Tensor, chunk_size: int | None = None, out: Tensor | None = None
) -> Tensor:
    """x + sum_m weights_m a_m [P] (Eq 15), written into `out` if given, on the device of x [P] and weights [M]."""
    step = chunk_size or max(1, len(anchors))
    out = x.clone() if out is None else out.copy_(x)
    for rows, w in zip(torch.split(anchors, step), torch.split(weights, step), strict=True):
        out.addmv_(rows.to(x.device).T, w)
    return out


def project(gradient: Tensor, anchors: Tensor, chunk_size: int | None = None) -> Tensor:
    """The inner product of a gradient [P] with each anchor [M] (Eq 16)."""
    step = chunk_size or max(1, len(anchors))
    return torch.cat([rows.to(gradient.device) @ gradient for rows in torch.split(anchors, step)])
