"""The contract of a partition: which client has which training examples. n examples, N clients.

Each choice is a frozen dataclass in a file of this folder, with conf/partition/<file>.yaml.
"""

from abc import abstractmethod
from typing import Protocol

import numpy as np


class Partition(Protocol):
    """A rule that deals the training examples out to the clients. The run applies it once, when it has loaded data."""

    @abstractmethod
    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The indices of each client's examples: N ascending int64 arrays, disjoint, in which all examples occur.

        A partition that gives an example to several clients, or to none, says so in its docstring. `strata` [n] int64
        is the class of each example, `users` [n] int64 its natural client (None: the data set has no users). A pure
        function of the fields, the arguments and `rng`, which the run derives from its seed. Raises ValueError, named
        after the field, where these examples cannot be dealt out so, and UserError where the data set does not fit the
        partition.
        """
