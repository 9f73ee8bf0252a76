"""Dirichlet label skew with equal sizes (Lin et al., FedDF, NeurIPS 2020, as in the authors' code).

https://arxiv.org/abs/2006.07242
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions._balanced_dirichlet import balanced_counts
from fedlab_runner.partitions.base import Partition
from fedlab_runner.utils.validate import at_least

GROUP_SIZE = 10  # the largest number of clients in a group, as in the authors' code


@dataclass(frozen=True)
class DirichletEqualSize(Partition):
    """Cuts the examples into random equal parts, one for each ten clients; divides each part as `dirichlet` does; and
    cuts the joined lists into lists of equal size.

    Sizes differ by at most one, and clients with neighbouring ids share some classes. The draw of a part repeats until
    its smallest client has half of the mean, at most `max_tries` times (the authors' loop may have no end). Fewer than
    ten clients, which the authors exclude, are one group.
    """

    alpha: float
    max_tries: int

    def __post_init__(self) -> None:
        _common.check_alpha(self.alpha)
        at_least(1, max_tries=self.max_tries)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        n = len(strata)
        _common.check_num_clients(num_clients, n)
        labels, class_sizes = _common.classes(strata)
        num_groups, num_classes = -(-num_clients // GROUP_SIZE), len(class_sizes)
        clients = _common.equal_sizes(num_clients, num_groups)  # [G] auxiliary clients
        ends = clients.cumsum() * n // num_clients
        group = np.empty(n, np.int64)
        group[rng.permutation(n)] = np.repeat(np.arange(num_groups), np.diff(ends, prepend=0))
        group_class = group * num_classes + labels

        exists = np.arange(GROUP_SIZE) < clients[:, None]  # [G, M]
        sizes = np.bincount(group_class, minlength=num_groups * num_classes).reshape(num_groups, num_classes)
        counts = np.empty((num_groups, num_classes, GROUP_SIZE), np.int64)
        open = np.arange(num_groups)  # the groups without an acceptable draw so far
        for _ in range(self.max_tries):
            counts[open] = balanced_counts(sizes[open], exists[open], self.alpha, rng)
            smallest = np.where(exists[open], counts[open].sum(1), n).min(1)
            open = open[smallest < 0.5 * sizes[open].sum(1) / clients[open]]
            if not len(open):
                break

        order = _common.shuffled_by_class(group_class, rng)
        auxiliary = _common.deal(order, counts.reshape(-1, GROUP_SIZE))  # the client within the group
        joined = order[np.argsort((group * GROUP_SIZE + auxiliary)[order], kind="stable")]
        owner = _common.deal(joined, _common.equal_sizes(n, num_clients)[None])
        return _common.index_lists(owner, num_clients)
