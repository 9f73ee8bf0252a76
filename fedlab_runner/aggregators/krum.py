"""Krum (Blanchard et al., NeurIPS 2017), section 4. https://arxiv.org/abs/1703.02757"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.aggregators._krum import krum_scores
from fedlab_runner.aggregators._tolerant import Tolerant


@dataclass(frozen=True)
class Krum(Tolerant):
    """The server takes the one update that is nearest to its A - f - 2 nearest ones, by the sum of squared distances.

    f is `byzantine` times the number A of updates, rounded down. Of updates that score alike the first one counts.
    """

    compares: ClassVar[bool] = True
    needs: ClassVar[tuple[int, int]] = (2, 3)

    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        chosen = krum_scores(distances, self.tolerated(len(shares))).argmin()
        return torch.zeros_like(shares).index_fill_(0, chosen, 1.0)
