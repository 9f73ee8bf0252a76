"""Feddle's model atlas: the client updates kept as directions (anchors), and the arithmetic of combining them.

M anchors of P values each. Nothing here holds more than a chunk of anchors beside the model, so that they may live in
host memory and be streamed.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Atlas(NamedTuple):
    """Up to `size` anchors; a client may own several."""

    anchors: Tensor  # a_m [M, P], as they came
    scores: Tensor  # s_m [M], |c_m| of the last search; infinite before the first
    arrival: Tensor  # [M] int64, anchors are numbered as they arrive
    clients: Tensor  # [M] int64
    rounds: Tensor  # [M] int64, when the client had received its model

    @staticmethod
    def empty(like: Tensor) -> "Atlas":
        """An atlas without anchors, for parameters [P]."""
        none = torch.empty(0, dtype=torch.int64)
        return Atlas(like.new_empty(0, len(like)), torch.empty(0, dtype=torch.float64), none, none, none)

    def add(
        self, deltas: Tensor, clients: list[int], rounds: list[int], *, size: int, by_score: bool, device: torch.device
    ) -> "Atlas":
        """The atlas, on `device`, with updates [A, P] added in order, each in place of the least important anchor when
        the atlas is full (Algorithm 1, UpdateAtlas).

        That is the one with the lowest score, the first of equals, or the oldest when none has been searched yet or
        when scores do not count. An update of zero length is no direction and is left out.
        """
        anchors, scores, arrival = list(self.anchors.to(device)), self.scores.tolist(), self.arrival.tolist()
        owners, ages = self.clients.tolist(), self.rounds.tolist()
        for delta, client, round in zip(deltas, clients, rounds, strict=True):
            if not bool(delta.any()):
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
            anchors[m], scores[m], arrival[m] = delta.to(device), float("inf"), number
            owners[m], ages[m] = client, round
        if not anchors:
            return self
        numbers = (torch.tensor(column, dtype=torch.int64) for column in (arrival, owners, ages))
        return Atlas(torch.stack(anchors), torch.tensor(scores, dtype=torch.float64), *numbers)

    def scales(self, normalise: bool) -> Tensor:
        """What turns each anchor into its normalised self [M]: median of the lengths / its own (Eq 4), or one."""
        if not normalise:
            return self.anchors.new_ones(len(self.anchors))
        lengths: Tensor = torch.linalg.vector_norm(self.anchors, dim=1)
        return lengths.quantile(0.5) / lengths  # the mean of the two in the middle when M is even


def combine(x: Tensor, anchors: Tensor, weights: Tensor, chunk_size: int | None = None) -> Tensor:
    """x + sum_m weights_m a_m [P], for x [P] and weights [M] on the device where it is wanted (Eq 15)."""
    step = chunk_size or max(1, len(anchors))
    for rows, w in zip(torch.split(anchors, step), torch.split(weights, step), strict=True):
        x = torch.addmv(x, rows.to(x.device).T, w)
    return x


def project(gradient: Tensor, anchors: Tensor, chunk_size: int | None = None) -> Tensor:
    """The inner product of a gradient [P] with each anchor [M] (Eq 16)."""
    step = chunk_size or max(1, len(anchors))
    return torch.cat([rows.to(gradient.device) @ gradient for rows in torch.split(anchors, step)])
