"""Multi-Krum (Blanchard et al., NeurIPS 2017), section 4. https://arxiv.org/abs/1703.02757"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.aggregators._krum import krum_scores
from fedlab_runner.aggregators._tolerant import Tolerant
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class MultiKrum(Tolerant):
    """The server takes the mean of the `kept` updates with the best scores of Krum (null: A - f of the A updates).

    f is `byzantine` times A, rounded down. Where fewer than `kept` updates arrive it takes them all. The mean is
    weighted as the algorithm says: uniform weights are the paper's.
    """

    kept: int | None

    compares: ClassVar[bool] = True
    needs: ClassVar[tuple[int, int]] = (2, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, kept=self.kept)

    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        f = self.tolerated(len(shares))
        best = krum_scores(distances, f).argsort(stable=True)[: self.kept or len(shares) - f]
        weights = torch.zeros_like(shares).index_copy_(0, best, shares[best])
        return weights / weights.sum()
