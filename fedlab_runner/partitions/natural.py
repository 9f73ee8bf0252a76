"""Natural clients: a client for each user of the data set (Caldas et al., LEAF, 2018). https://arxiv.org/abs/1812.01097"""

import logging
from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.base import Partition
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Natural(Partition):
    """Each client is a user with at least `min_samples` examples, drawn without replacement, in the order of users.

    No client trains on the examples of other users.
    """

    min_samples: int

    def __post_init__(self) -> None:
        at_least(1, min_samples=self.min_samples)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        if users is None:
            raise UserError("partition=natural needs a data set with users, and this data set has none")
        at_least(1, num_clients=num_clients)
        _, user, sizes = np.unique(users, return_inverse=True, return_counts=True)
        eligible = np.flatnonzero(sizes >= self.min_samples)
        if num_clients > len(eligible):
            raise UserError(
                f"num_clients must be at most {len(eligible)}, the number of users with at least "
                f"{self.min_samples} training examples, got {num_clients}"
            )
        if num_clients < len(eligible):
            _log.info("%d of %d users are clients: num_clients=%d takes all", num_clients, *[len(eligible)] * 2)
        chosen = np.sort(rng.choice(eligible, num_clients, replace=False))
        lists = _common.index_lists(user, len(sizes))
        return [lists[index] for index in chosen.tolist()]
