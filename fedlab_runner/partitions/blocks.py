"""Feature blocks: clients that hold some features of some examples (hybrid federated learning).

The run stores whole examples; a client's model reads only the blocks that the client holds. N clients, d0 blocks, C
classes.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedlab_runner.partitions.base import Partition
from fedlab_runner.utils.errors import UserError


class Holdings(NamedTuple):
    """The blocks and the classes of each client."""

    blocks: np.ndarray  # [N, d0] bool
    classes: np.ndarray  # [N, C] bool; a client has all examples of its classes


class BlockPartition(Partition):
    """A partition by feature blocks and classes: a client has its blocks of all examples of its classes.

    Clients may share examples. No client trains on examples of a class that no client has.
    """

    @abstractmethod
    def draw(self, num_clients: int, num_classes: int, rng: np.random.Generator) -> Holdings:
        """The blocks and classes of each client, a pure function of the fields and the arguments.

        Raises ValueError, named after the field, if no such draw exists.
        """

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The ascending examples of every client."""
        return [np.flatnonzero(mine[strata]) for mine in self._checked(strata, num_clients, rng).classes]

    def owned(self, strata: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """The blocks of each client, [N, d0] bool. `rng` must start in the same state as that of `split`."""
        return self._checked(strata, num_clients, rng).blocks

    def _checked(self, strata: np.ndarray, num_clients: int, rng: np.random.Generator) -> Holdings:
        holdings = self.draw(num_clients, int(strata.max(initial=-1)) + 1, rng)
        for client, mine in enumerate(holdings.blocks):
            if not mine.any():
                raise UserError(
                    f"partition gives client {client} no feature block: give it a block, or leave the client out"
                )
        if (alone := np.flatnonzero(~holdings.blocks.any(0))).size:
            numbers = ", ".join(map(str, alone.tolist()))
            raise UserError(
                f"partition gives feature block {numbers} to no client: give it to a client, or set "
                "partition.num_blocks to those that clients hold (random_blocks: more clients or another draw)"
            )
        return holdings


def with_their_blocks(split: Sequence[np.ndarray], owned: np.ndarray, present: Tensor | None) -> list[np.ndarray]:
    """The examples of each client that have all its blocks; `present` [n, d0] bool marks the blocks of each example.

    With `present` None all examples have all blocks. Raises UserError for a client without such examples.
    """
    if present is not None:
        there = present.numpy()
        if there.shape[1] != owned.shape[1]:
            raise UserError(
                f"partition has {owned.shape[1]} feature blocks and the data set {there.shape[1]}: set "
                f"partition.num_blocks={there.shape[1]}"
            )
        split = [part[there[part][:, mine].all(1)] for part, mine in zip(split, owned, strict=True)]
    for client, part in enumerate(split):
        if not len(part):
            raise UserError(f"partition leaves client {client} without an example of its classes that has its blocks")
    return list(split)


def by_blocks(owned: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """The rows of `owned` [K, d0], grouped by their blocks: pairs (blocks, rows), in order of first occurrence."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, mine in enumerate(owned):
        groups.setdefault(tuple(np.flatnonzero(mine).tolist()), []).append(row)
    return [(blocks, np.array(rows)) for blocks, rows in groups.items()]


def common_blocks(owned: np.ndarray) -> list[int]:
    """The blocks that all clients of `owned` [N, d0] hold."""
    return [int(block) for block in np.flatnonzero(owned.all(0))]
