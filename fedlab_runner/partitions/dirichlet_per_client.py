"""Dirichlet label skew drawn per client, equal sizes (Hsu et al., 2019). https://arxiv.org/abs/1909.06335"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common

BLOCK = 1024  # clients whose class distributions are drawn at a time


@dataclass(frozen=True)
class DirichletPerClient:
    """Client after client draws its class distribution from Dirichlet(alpha * frequencies of the classes), then that
    many samples without replacement; a class that runs out drops out, its share going to the others in proportion.

    Sizes differ by at most one. The last clients take what is left, as in the paper.
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
        wanted = []  # the class of every place, client after client
        for start in range(0, num_clients, BLOCK):
            block = sizes[start : start + BLOCK].tolist()
            logs = _common.log_gamma(rng, np.broadcast_to(concentration, (len(block), len(left))))
            for log, size in zip(logs, block, strict=True):
                wanted.append(np.repeat(np.arange(len(left)), _take(log, size, left, rng)))
        places = np.argsort(np.concatenate(wanted), kind="stable")
        owner = np.empty(len(strata), np.int64)
        owner[_common.shuffled_by_class(labels, rng)] = np.repeat(np.arange(num_clients), sizes)[places]
        return _common.index_lists(owner, num_clients)


def _take(log: np.ndarray, size: int, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws `size` samples, one after the other, from the classes that have some left, and subtracts them from left.

    What a batch of draws asks beyond a class's rest is drawn again from the others: the same as one by one.
    """
    taken = np.zeros_like(left)
    while missing := size - int(taken.sum()):
        counts = np.minimum(rng.multinomial(missing, _common.shares(log, left > 0)), left)
        taken += counts
        left -= counts
    return taken
