"""Sums of updates, part of the cohort by part, for servers that read nothing else of them."""

from typing import Generic, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.core.updates import Upload, like


class RunningSums(Generic[Upload]):
    """The sums of updates by numbers of examples and by clients, to which parts of a cohort are added."""

    def __init__(self) -> None:
        self._totals: Upload | None = None  # each tensor [2, ...]
        self._counts: Tensor | None = None  # [2] int64: examples, clients

    def add(self, upload: Upload, num_examples: Tensor) -> None:
        """Adds updates, tensors [k, ...], of clients with `num_examples` [k] int64 examples."""
        weights = torch.stack([num_examples, torch.ones_like(num_examples)])
        more = like(upload, (torch.tensordot(weights.to(rows.dtype), rows, 1) for rows in upload))
        if self._totals is None or self._counts is None:
            self._totals, self._counts = more, weights.sum(1)
            return
        for total, part in zip(self._totals, more, strict=True):
            total += part
        self._counts += weights.sum(1)

    def means(self) -> "Means[Upload]":
        """The means of all updates that were added, in the memory of their sums: the last call."""
        assert self._totals is not None and self._counts is not None
        totals, counts = self._totals, self._counts
        if not int(counts[1]):
            return Means(like(totals, (total[:0] for total in totals)), counts[:0], counts[:0])
        for total in totals:
            total /= counts.to(total.dtype).view(2, *[1] * (total.dim() - 1))
        none = torch.zeros_like(counts[:1])
        return Means(totals, torch.cat([counts[:1], none]), torch.cat([none, counts[1:]]))


class Means(NamedTuple, Generic[Upload]):
    """Two rows in the place of the updates of many clients, none for no clients. `Updates.mean` weighs rows by their
    examples, or by their clients where it is uniform: each of its two means reads one of the rows.
    """

    upload: Upload  # each tensor [2, ...]: the mean weighted by numbers of examples, and the plain mean
    num_examples: Tensor  # [2] int64: of all clients, and 0
    clients: Tensor  # [2] int64: 0, and how many there are
