"""The mean (McMahan et al., AISTATS 2017). https://arxiv.org/abs/1602.05629"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlab_runner.aggregators.base import Aggregator


@dataclass(frozen=True)
class Mean(Aggregator):
    """The server takes the mean, weighted as the algorithm says."""

    acts: ClassVar[bool] = False

    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        return shares
