"""Quantity skew: sizes from a Dirichlet vector, random classes (Li et al., NIID-Bench, ICDE 2022).

https://arxiv.org/abs/2102.02079
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.base import Partition
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class QuantitySkew(Partition):
    """Gives each client `min_size` random examples and divides the other examples by Dirichlet(alpha).

    NIID-Bench instead repeats the draw of all sizes until the smallest is 10, a loop that may never end.
    """

    alpha: float
    min_size: int

    def __post_init__(self) -> None:
        _common.check_alpha(self.alpha)
        at_least(0, min_size=self.min_size)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        n = len(strata)
        _common.check_num_clients(num_clients, n)
        rest = n - num_clients * self.min_size
        if rest < 0:
            raise ValueError(
                f"min_size must be at most {n // num_clients} for {n} examples and {num_clients} clients, "
                f"got {self.min_size}"
            )
        weights = _common.dirichlet(rng, self.alpha, np.ones((1, num_clients), bool))
        sizes = self.min_size + _common.cut(weights, np.array([rest]))
        return _common.index_lists(_common.deal(rng.permutation(n), sizes), num_clients)
