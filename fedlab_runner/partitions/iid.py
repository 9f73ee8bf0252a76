"""Independent and identically distributed clients: a random permutation cut into equal parts."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.base import Partition


@dataclass(frozen=True)
class IID(Partition):
    """Each client gets the same number of random examples; sizes differ by at most one."""

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        sizes = _common.equal_sizes(len(strata), num_clients)
        owner = _common.deal(rng.permutation(len(strata)), sizes[None])
        return _common.index_lists(owner, num_clients)
