"""Dirichlet label skew with a draw for each client and equal sizes (Hsu et al., 2019). https://arxiv.org/abs/1909.06335"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.base import Partition

CLIENTS_AT_ONCE = 1024  # clients whose class distributions are drawn in one call


@dataclass(frozen=True)
class DirichletPerClient(Partition):
    """Client after client draws its class distribution from Dirichlet(alpha * class frequencies), then its examples by
    that distribution, without replacement.

    The other classes take over the share of an exhausted class, in proportion. Sizes differ by at most one. The last
    clients get the remaining examples, as in the paper.
    """

    alpha: float

    def __post_init__(self) -> None:
        _common.check_alpha(self.alpha)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        labels, class_sizes = _common.classes(strata)
        sizes = _common.equal_sizes(len(strata), num_clients)
        concentration = self.alpha * class_sizes / len(strata)
        left = class_sizes.copy()
        wanted = []  # the class of each place, client after client
        for start in range(0, num_clients, CLIENTS_AT_ONCE):
            block = sizes[start : start + CLIENTS_AT_ONCE].tolist()
            logs = _common.log_gamma(rng, np.broadcast_to(concentration, (len(block), len(left))))
            for log, size in zip(logs, block, strict=True):
                wanted.append(np.repeat(np.arange(len(left)), _take(log, size, left, rng)))
        places = np.argsort(np.concatenate(wanted), kind="stable")
        owner = np.empty(len(strata), np.int64)
        owner[_common.shuffled_by_class(labels, rng)] = np.repeat(np.arange(num_clients), sizes)[places]
        return _common.index_lists(owner, num_clients)


def _take(log: np.ndarray, size: int, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts [C] of `size` examples, drawn from the classes that still have examples; subtracts them from `left` [C].

    Draws beyond a class's last example are repeated among the other classes, which equals drawing one by one.
    """
    taken = np.zeros_like(left)
    while missing := size - int(taken.sum()):
        counts = np.minimum(rng.multinomial(missing, _common.shares(log, left > 0)), left)
        taken += counts
        left -= counts
    return taken
