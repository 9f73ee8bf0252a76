"""The coordinate-wise trimmed mean (Yin et al., ICML 2018), Algorithm 1, option II. https://arxiv.org/abs/1803.01498"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.aggregators._columns import by_columns
from fedlab_runner.aggregators._tolerant import Tolerant


@dataclass(frozen=True)
class TrimmedMean(Tolerant):
    """Each value is the mean of the updates' values without the f largest and the f smallest of them.

    f is `byzantine` (the paper's beta) times the number of updates, rounded down. Updates count alike, whatever the
    algorithm's `weighting`.
    """

    needs: ClassVar[tuple[int, int]] = (2, 1)

    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        return torch.full_like(shares, 1 / len(shares))

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        f = self.tolerated(len(rows))
        return by_columns(rows, lambda ordered: ordered[f : len(ordered) - f].mean(0))
