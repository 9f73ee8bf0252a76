"""Dirichlet label skew without balance or minimum (Li et al., FedLAW, ICML 2023, as in the authors' code).

https://arxiv.org/abs/2302.10911
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.base import Partition


@dataclass(frozen=True)
class DirichletUnbounded(Partition):
    """Divides each class by its own Dirichlet(alpha) vector, with rounded counts; the last client gets the remainder.

    Sizes differ widely, and clients may be empty. If a class has few examples for many clients, rounding leaves most of
    them to the last client, as in the authors' code.
    """

    alpha: float

    def __post_init__(self) -> None:
        _common.check_alpha(self.alpha)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        labels, class_sizes = _common.classes(strata)
        weights = _common.dirichlet(rng, self.alpha, np.ones((len(class_sizes), num_clients), bool))
        ends = np.rint(weights * class_sizes[:, None]).astype(np.int64).cumsum(1)
        ends = np.minimum(ends, class_sizes[:, None])  # rounded counts may exceed the class
        ends[:, -1] = class_sizes
        owner = _common.deal(_common.shuffled_by_class(labels, rng), np.diff(ends, axis=1, prepend=0))
        return _common.index_lists(owner, num_clients)
