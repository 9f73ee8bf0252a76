"""Few classes a client and sizes that follow a power law (Li et al., FedProx, MLSys 2020), section 5.1.

https://arxiv.org/abs/1812.06127

The numbers are those of the authors' code: https://github.com/litian96/FedProx
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.base import Partition
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class PowerLaw(Partition):
    """Client i has the `classes_per_client` classes i, i + 1, ... modulo the number of classes. It gets `min_per_class`
    examples of each. The clients of a class divide its other examples in lognormal proportions, whose logarithm has the
    standard deviation `sigma`.

    Clients get all examples. The authors' code drops the examples that rounding down leaves over, fewer than one for
    each client of a class.
    """

    classes_per_client: int
    min_per_class: int
    sigma: float

    def __post_init__(self) -> None:
        at_least(1, classes_per_client=self.classes_per_client)
        at_least(0, min_per_class=self.min_per_class)
        at_least(0, sigma=self.sigma)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        labels, class_sizes = _common.classes(strata)
        num_classes = len(class_sizes)
        if self.classes_per_client > num_classes:
            raise ValueError(
                f"classes_per_client must be at most {num_classes}, the number of classes, "
                f"got {self.classes_per_client}"
            )
        first = np.arange(num_clients) % num_classes
        has = (np.arange(num_classes)[:, None] - first) % num_classes < self.classes_per_client  # [C, N]
        if not has.any(1).all():
            raise ValueError(
                f"num_clients must be at least {num_classes - self.classes_per_client + 1}, so that each of "
                f"{num_classes} classes has a client, got {num_clients}"
            )
        rest = class_sizes - self.min_per_class * has.sum(1)
        if rest.min() < 0:
            raise ValueError(
                f"min_per_class must be at most {int((class_sizes // has.sum(1)).min())} for {num_clients} clients, as "
                f"the smallest class has {class_sizes.min()} examples; got {self.min_per_class}"
            )
        shares = _common.shares(self.sigma * rng.standard_normal(has.shape), has)
        counts = self.min_per_class * has + _common.cut(shares, rest)
        return _common.index_lists(_common.deal(_common.shuffled_by_class(labels, rng), counts), num_clients)
