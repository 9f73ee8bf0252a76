"""Quantity-based label skew: k classes a client, "#C = k" (Li et al., NIID-Bench, ICDE 2022), section IV-A.

https://arxiv.org/abs/2102.02079
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.base import Partition
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """Client i has class i modulo the number of classes, and `labels` - 1 other classes, drawn uniformly. The clients
    of a class get equal parts of it, which differ by at most one example.
    """

    labels: int

    def __post_init__(self) -> None:
        at_least(1, labels=self.labels)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        class_of, class_sizes = _common.classes(strata)
        num_classes = len(class_sizes)
        if self.labels > num_classes:
            raise ValueError(f"labels must be at most {num_classes}, the number of classes, got {self.labels}")
        if num_clients < num_classes and self.labels < num_classes:
            raise ValueError(
                f"num_clients must be at least {num_classes}, the number of classes, so that each class has a client, "
                f"got {num_clients}"
            )
        keys = rng.random((num_clients, num_classes))
        clients = np.arange(num_clients)
        keys[clients, clients % num_classes] = -1  # below all others
        has = np.zeros((num_clients, num_classes), bool)
        np.put_along_axis(has, keys.argsort(1)[:, : self.labels], True, axis=1)
        counts = np.zeros((num_classes, num_clients), np.int64)
        for label, size in enumerate(class_sizes.tolist()):
            counts[label, has[:, label]] = _common.equal_sizes(size, int(has[:, label].sum()))
        return _common.index_lists(_common.deal(_common.shuffled_by_class(class_of, rng), counts), num_clients)
