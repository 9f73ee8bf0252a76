"""The coordinate-wise median (Yin et al., ICML 2018), Algorithm 1, option I. https://arxiv.org/abs/1803.01498"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlab_runner.aggregators._columns import by_columns, middle
from fedlab_runner.aggregators.base import Aggregator


@dataclass(frozen=True)
class CoordinateMedian(Aggregator):
    """Each value is the median of the updates' values: the mean of the two in the middle where their number is even.

    Updates count alike, whatever the algorithm's `weighting`.
    """

    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        return torch.full_like(shares, 1 / len(shares))

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        return by_columns(rows, middle)
