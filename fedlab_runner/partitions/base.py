"""Who has which samples: one file and one frozen dataclass a partition, with conf/partition/<file>.yaml.

`split(strata, users, num_clients, rng)` gives the int64 indices of every client's samples, ascending and disjoint; all
samples are dealt unless the class says otherwise.
"""

from typing import Protocol

import numpy as np


class Partition(Protocol):
    """A way to deal the training examples out to the clients."""

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The examples of every client, from each example's class [n] and natural client [n] (None: it has none)."""
        ...
