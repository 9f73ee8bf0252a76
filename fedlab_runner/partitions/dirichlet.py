"""Dirichlet label skew with a minimum size (Yurochkin et al., ICML 2019; FedMA and NIID-Bench use it).

https://arxiv.org/abs/1905.12022
"""

import heapq
import logging
from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions._balanced_dirichlet import balanced_counts
from fedlab_runner.partitions.base import Partition
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.validate import at_least

_log = logging.getLogger("fedlab_runner")


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Divides each class by Dirichlet(alpha) among the clients below the mean size, and repeats the whole draw until
    each client has `min_size` examples.

    The authors' loop may never end (500 clients on CIFAR-10 at alpha 0.1). After `max_tries` draws this partition
    repairs the last draw instead: random examples move, one at a time, from the largest client to clients below
    `min_floor`.
    """

    alpha: float
    min_size: int
    max_tries: int
    min_floor: int

    def __post_init__(self) -> None:
        _common.check_alpha(self.alpha)
        at_least(0, min_size=self.min_size)
        at_least(1, max_tries=self.max_tries)
        if not 0 <= self.min_floor <= self.min_size:
            raise ValueError(f"min_floor must be between 0 and min_size ({self.min_size}), got {self.min_floor}")

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        if num_clients * self.min_floor > len(strata):
            raise ValueError(
                f"min_floor must be at most {len(strata) // num_clients} for {len(strata)} examples "
                f"and {num_clients} clients, got {self.min_floor}"
            )
        labels, class_sizes = _common.classes(strata)
        everyone = np.ones((1, num_clients), bool)
        tries = self.max_tries if num_clients * self.min_size <= len(strata) else 1  # otherwise no draw can succeed
        for left in reversed(range(tries)):
            least = self.min_size if left else 0  # the last draw counts, so all its classes must be drawn
            counts = balanced_counts(class_sizes[None], everyone, self.alpha, rng, least)[0]  # [C, N]
            if counts.sum(0).min() >= self.min_size:
                break
        owner = _common.deal(_common.shuffled_by_class(labels, rng), counts)
        _repair(owner, num_clients, self.min_floor, rng)
        if (least := int(np.bincount(owner, minlength=num_clients).min())) < self.min_size:
            _log.warning(
                "partition.min_size=%d is not met after %s: the smallest of %d clients has %s",
                *(self.min_size, count_of(tries, "draw"), num_clients, count_of(least, "example")),
            )
        return _common.index_lists(owner, num_clients)


def _repair(owner: np.ndarray, num_clients: int, floor: int, rng: np.random.Generator) -> None:
    """Changes `owner` [n] in place so that each client has `floor` examples; n >= num_clients * floor."""
    sizes = np.bincount(owner, minlength=num_clients)
    receivers = np.repeat(np.arange(num_clients), np.maximum(floor - sizes, 0))
    if not len(receivers):
        return
    heap = [(-size, client) for client, size in enumerate(sizes.tolist())]
    heapq.heapify(heap)
    givers = np.empty_like(receivers)
    for move in range(len(receivers)):
        size, givers[move] = heap[0]
        heapq.heapreplace(heap, (size + 1, int(givers[move])))
    shuffled = rng.permutation(len(owner))
    by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
    # the k-th example that a client gives is the k-th of its examples in random order
    order = np.argsort(givers, kind="stable")
    starts = sizes.cumsum() - sizes
    given = np.bincount(givers, minlength=num_clients)
    nth = np.arange(len(givers)) - np.repeat(given.cumsum() - given, given)
    owner[by_owner[starts[givers[order]] + nth]] = receivers[order]
