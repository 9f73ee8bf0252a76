"""Shards of examples sorted by label (McMahan et al., AISTATS 2017). https://arxiv.org/abs/1602.05629"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.base import Partition
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class Shards(Partition):
    """Sorts the examples by class, cuts them into num_clients * shards_per_client shards, whose sizes differ by at most
    one, and deals `shards_per_client` random shards to each client.
    """

    shards_per_client: int

    def __post_init__(self) -> None:
        at_least(1, shards_per_client=self.shards_per_client)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        num_shards = num_clients * self.shards_per_client
        if num_shards > len(strata):
            raise ValueError(
                f"shards_per_client must be at most {len(strata) // num_clients} for {len(strata)} examples "
                f"and {num_clients} clients, got {self.shards_per_client}"
            )
        client_of_shard = rng.permutation(num_shards) // self.shards_per_client
        owner = np.empty(len(strata), np.int64)
        owner[np.argsort(strata, kind="stable")] = np.repeat(
            client_of_shard, _common.equal_sizes(len(strata), num_shards)
        )
        return _common.index_lists(owner, num_clients)
