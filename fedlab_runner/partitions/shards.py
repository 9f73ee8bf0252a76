"""Shards of samples sorted by label (McMahan et al., AISTATS 2017). https://arxiv.org/abs/1602.05629"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common


@dataclass(frozen=True)
class Shards:
    """Samples sorted by class, cut into num_clients * shards_per_client equal runs (sizes differ by at most one), which
    are dealt at random, shards_per_client to a client."""

    shards_per_client: int

    def __post_init__(self) -> None:
        _common.check_at_least("shards_per_client", self.shards_per_client, 1)

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        _common.check_num_clients(num_clients, len(strata))
        num_shards = num_clients * self.shards_per_client
        if num_shards > len(strata):
            raise ValueError(
                f"shards_per_client must be at most {len(strata) // num_clients} for {len(strata)} samples "
                f"and {num_clients} clients, got {self.shards_per_client}"
            )
        client_of_shard = rng.permutation(num_shards) // self.shards_per_client
        owner = np.empty(len(strata), np.int64)
        owner[np.argsort(strata, kind="stable")] = np.repeat(
            client_of_shard, _common.equal_sizes(len(strata), num_shards)
        )
        return _common.index_lists(owner, num_clients)
