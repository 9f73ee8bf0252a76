"""Dirichlet label skew with equal sizes (Lin et al., FedDF, NeurIPS 2020, as in the authors' code).

https://arxiv.org/abs/2006.07242
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions._yurochkin import balanced_counts

GROUP = 10  # auxiliary clients, at most, that share out one part of the samples


@dataclass(frozen=True)
class DirichletEqualSize:
    """Random equal parts of the samples, one for every ten clients, are each shared out as Yurochkin et al. do; then
    all lists are joined and cut anew into equal lists, so sizes differ by at most one and neighbours mix a little.

    A part is drawn again until its smallest client has half of the mean, at most max_tries times (the authors' loop
    has no end). Fewer than ten clients, which the authors exclude, are one group.
    """

    alpha: float
    max_tries: int

    def __post_init__(self) -> None:
        _common.check_alpha(self.alpha)
        _common.check_at_least("max_tries", self.max_tries, 1)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        n = len(strata)
        _common.check_num_clients(num_clients, n)
        labels, class_sizes = _common.classes(strata)
        num_groups, num_classes = -(-num_clients // GROUP), len(class_sizes)
        clients = _common.equal_sizes(num_clients, num_groups)  # [G] auxiliary clients
        ends = clients.cumsum() * n // num_clients
        group = np.empty(n, np.int64)
        group[rng.permutation(n)] = np.repeat(np.arange(num_groups), np.diff(ends, prepend=0))
        group_class = group * num_classes + labels

        exists = np.arange(GROUP) < clients[:, None]  # [G, M]
        sizes = np.bincount(group_class, minlength=num_groups * num_classes).reshape(num_groups, num_classes)
        counts = np.empty((num_groups, num_classes, GROUP), np.int64)
        open = np.arange(num_groups)  # the groups that have no acceptable draw yet
        for _ in range(self.max_tries):
            counts[open] = balanced_counts(sizes[open], exists[open], self.alpha, rng)
            smallest = np.where(exists[open], counts[open].sum(1), n).min(1)
            open = open[smallest < 0.5 * sizes[open].sum(1) / clients[open]]
            if not len(open):
                break

        order = _common.shuffled_by_class(group_class, rng)
        auxiliary = _common.deal(order, counts.reshape(-1, GROUP))  # the client within the group
        joined = order[np.argsort((group * GROUP + auxiliary)[order], kind="stable")]
        owner = _common.deal(joined, _common.equal_sizes(n, num_clients)[None])
        return _common.index_lists(owner, num_clients)
