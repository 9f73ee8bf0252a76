"""Feature blocks: clients that hold some parts of every example, and of some examples (hybrid federated learning).

Examples are kept whole; a client's model reads the blocks that it holds. N clients, d0 blocks, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedlab_runner.utils.errors import UserError


class Holdings(NamedTuple):
    """What each client has."""

    blocks: np.ndarray  # [N, d0] bool
    classes: np.ndarray  # [N, C] bool, the classes of which it has all examples


class BlockPartition(ABC):
    """A partition by feature blocks and classes: a client has its blocks of all examples of its classes.

    Clients may have the same examples; those of classes that nobody has are not trained on.
    """

    @abstractmethod
    def draw(self, num_clients: int, num_classes: int, rng: np.random.Generator) -> Holdings:
        """Who has what; ValueError, named after the field, where that cannot be."""

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The examples of every client, ascending."""
        return [np.flatnonzero(mine[strata]) for mine in self._checked(strata, num_clients, rng).classes]

    def owned(self, strata: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Who holds which blocks [N, d0] bool; from the same stream as `split`."""
        return self._checked(strata, num_clients, rng).blocks

    def _checked(self, strata: np.ndarray, num_clients: int, rng: np.random.Generator) -> Holdings:
        holdings = self.draw(num_clients, int(strata.max(initial=-1)) + 1, rng)
        for client, mine in enumerate(holdings.blocks):
            if not mine.any():
                raise UserError(f"partition gives client {client} no feature block: give it one or leave it out")
        if (alone := np.flatnonzero(~holdings.blocks.any(0))).size:
            numbers = ", ".join(map(str, alone.tolist()))
            raise UserError(
                f"partition gives feature block {numbers} to no client: give it to one, or set partition.num_blocks to "
                "those that are held (random ones: more clients or blocks a client, or another draw)"
            )
        return holdings


def with_their_blocks(split: Sequence[np.ndarray], owned: np.ndarray, present: Tensor | None) -> list[np.ndarray]:
    """The examples of every client that have all of its blocks; `present` [n, d0] says which have which (None: all).

    UserError for a client that is left without examples.
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
    """Rows [K] with the same blocks, of `owned` [K, d0]: (blocks, rows), in the order in which they first occur."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, mine in enumerate(owned):
        groups.setdefault(tuple(np.flatnonzero(mine).tolist()), []).append(row)
    return [(blocks, np.array(rows)) for blocks, rows in groups.items()]


def common_blocks(owned: np.ndarray) -> list[int]:
    """The blocks that all clients hold."""
    return [int(block) for block in np.flatnonzero(owned.all(0))]
