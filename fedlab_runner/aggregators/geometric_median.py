"""RFA (Pillutla, Kakade and Harchaoui, IEEE TSP 2022), Algorithm 2. https://arxiv.org/abs/1912.13445"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlab_runner.aggregators.base import Aggregator
from fedlab_runner.utils.validate import above, at_least


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The server takes the point with the least mean distance to the updates, weighted as the algorithm says.

    The smoothed Weiszfeld algorithm starts at the mean. In each of `iterations` it takes the mean in which an update
    counts its share, divided by its distance to the last point, or by `nu` if that is more. With the paper's 3
    iterations an update may be so far away that the point is still outside of the others.
    """

    nu: float
    iterations: int

    compares: ClassVar[bool] = True

    def __post_init__(self) -> None:
        above(0, nu=self.nu)
        at_least(1, iterations=self.iterations)

    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        weights = shares
        for _ in range(self.iterations):
            # |x_k - z|^2 for z = sum_j w_j x_j is sum_j w_j d_kj - sum_ij w_i w_j d_ij / 2.
            to_each = distances @ weights
            apart = (to_each - weights @ to_each / 2).clamp_min_(0).sqrt_().clamp_min_(self.nu)
            weights = shares / apart
            weights = weights / weights.sum()
        return weights
