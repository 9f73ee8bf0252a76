"""Natural clients: one for every user of the data set (Caldas et al., LEAF, 2018). https://arxiv.org/abs/1812.01097"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.utils.errors import UserError


@dataclass(frozen=True)
class Natural:
    """num_clients users with at least min_samples samples, drawn without replacement, in ascending order of user.

    Covers the samples of the drawn users, not those of the others.
    """

    min_samples: int

    def __post_init__(self) -> None:
        _common.check_at_least("min_samples", self.min_samples, 1)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        if users is None:
            raise UserError("partition=natural needs a data set with users, and this one has none")
        _common.check_at_least("num_clients", num_clients, 1)
        _, user, sizes = np.unique(users, return_inverse=True, return_counts=True)
        eligible = np.flatnonzero(sizes >= self.min_samples)
        if num_clients > len(eligible):
            raise UserError(
                f"num_clients must be at most {len(eligible)}, the number of users with at least "
                f"{self.min_samples} samples, got {num_clients}"
            )
        chosen = np.sort(rng.choice(eligible, num_clients, replace=False))
        lists = _common.index_lists(user, len(sizes))
        return [lists[index] for index in chosen.tolist()]
