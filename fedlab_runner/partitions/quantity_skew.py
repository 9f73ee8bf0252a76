"""Quantity skew: sizes from a Dirichlet vector, classes by chance (Li et al., NIID-Bench, ICDE 2022).

https://arxiv.org/abs/2102.02079
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common


@dataclass(frozen=True)
class QuantitySkew:
    """Every client gets min_size random samples, and the others are shared out by Dirichlet(alpha).

    NIID-Bench instead draws all sizes again until the smallest is 10, which may never end.
    """

    alpha: float
    min_size: int

    def __post_init__(self) -> None:
        _common.check_alpha(self.alpha)
        _common.check_at_least("min_size", self.min_size, 0)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        n = len(strata)
        _common.check_num_clients(num_clients, n)
        rest = n - num_clients * self.min_size
        if rest < 0:
            raise ValueError(
                f"min_size must be at most {n // num_clients} for {n} samples and {num_clients} clients, "
                f"got {self.min_size}"
            )
        weights = _common.dirichlet(rng, self.alpha, np.ones((1, num_clients), bool))
        sizes = self.min_size + _common.cut(weights, np.array([rest]))
        return _common.index_lists(_common.deal(rng.permutation(n), sizes), num_clients)
