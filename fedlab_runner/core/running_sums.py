"""Sums of updates, part of the cohort by part, for servers that read nothing else of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.core.updates import in_full, like


def sums_of(upload: Sequence[Tensor], num_examples: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """The sums [2, ...] of updates, tensors [k, ...]: by numbers of examples [k] int64, and plain. And [2] int64: the
    examples, and how many updates there are.

    It adds update after update: a product of matrices would have other bits with another number of threads.
    """
    sums, sizes = tuple(in_full(rows[:0]).new_zeros(2, *rows.shape[1:]) for rows in upload), num_examples.tolist()
    for rows, (weighted, plain) in zip(upload, sums, strict=True):
        for row, size in zip(rows, sizes, strict=True):
            weighted += size * row.to(weighted.dtype)
            plain += row
    return sums, torch.tensor([sum(sizes), len(sizes)], device=num_examples.device)


class Means(NamedTuple):
    """Two rows in the place of the updates of many clients, none for no clients. `Updates.mean` weighs rows by their
    examples, or by their clients where it is uniform: each of its two means reads one of the rows.
    """

    upload: Any  # as it was added, each tensor [2, ...]: the mean weighted by numbers of examples, and the plain mean
    num_examples: Tensor  # [2] int64: of all clients, and 0
    clients: Tensor  # [2] int64: 0, and how many there are


class RunningSums:
    """The sums of the updates of all parts that were added."""

    def __init__(self) -> None:
        self._totals: tuple[Tensor, ...] = ()
        self._counts = torch.zeros(2, dtype=torch.int64)

    def add(self, sums: tuple[Tensor, ...], counts: Tensor) -> None:
        """Adds the sums of a part, which may be written into."""
        if not self._totals:
            self._totals, self._counts = sums, counts
            return
        for total, more in zip(self._totals, sums, strict=True):
            total += more
        self._counts = self._counts + counts

    def means(self) -> Means:
        """The means of all updates, in the memory of their sums: the last call."""
        counts = self._counts
        if not int(counts[1]):
            return Means(like(self._totals, (total[:0] for total in self._totals)), counts[:0], counts[:0])
        for total in self._totals:
            total /= counts.to(total.dtype).view(2, *[1] * (total.dim() - 1))
        none = torch.zeros_like(counts[:1])
        return Means(self._totals, torch.cat([counts[:1], none]), torch.cat([none, counts[1:]]))
