"""Bulyan (El Mhamdi, Guerraoui and Rouault, ICML 2018), section 4. https://arxiv.org/abs/1802.07927"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.aggregators._columns import by_columns, middle
from fedlab_runner.aggregators._krum import krum_scores
from fedlab_runner.aggregators._tolerant import Tolerant


@dataclass(frozen=True)
class Bulyan(Tolerant):
    """Krum selects A - 2f of the A updates, one after another; each value is the mean of the A - 4f nearest to their
    median.

    Each time Krum compares the updates that are left, each with one other at least; of those that score alike it takes
    the first. f is `byzantine` times A, rounded down. Updates count alike, whatever the algorithm's `weighting`.
    """

    compares: ClassVar[bool] = True
    needs: ClassVar[tuple[int, int]] = (4, 3)

    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        f = self.tolerated(len(shares))
        left, selected = list(range(len(shares))), list[int]()
        for _ in range(len(shares) - 2 * f):
            best = int(krum_scores(distances[left][:, left], f).argmin())
            selected.append(left.pop(best))
        return torch.zeros_like(shares).index_fill_(0, torch.tensor(selected, device=shares.device), 1 / len(selected))

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        a, selected = len(rows), weights > 0
        near = a - 4 * self.tolerated(a)

        def nearest(ordered: Tensor) -> Tensor:
            order = (ordered - middle(ordered)).abs().sort(dim=0, stable=True).indices
            return ordered.gather(0, order[:near]).mean(0)

        return by_columns(rows, nearest, selected)
