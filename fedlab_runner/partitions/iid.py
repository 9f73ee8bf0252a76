"""Independent and identically distributed: a random permutation cut into equal parts."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common


@dataclass(frozen=True)
class IID:
    """Equal sizes (they differ by at most one), classes by chance."""

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        sizes = _common.equal_sizes(len(strata), num_clients)
        owner = _common.deal(rng.permutation(len(strata)), sizes[None])
        return _common.index_lists(owner, num_clients)
