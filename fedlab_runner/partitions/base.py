"""The contract of a partition: the training examples of each client. n examples, N clients.

Each choice is a frozen dataclass in a file of this folder, with conf/partition/<file>.yaml.
"""

from abc import abstractmethod
from typing import Protocol

import numpy as np


class Partition(Protocol):
    """A rule that deals the training examples to the clients. The run applies it once, after loading the data."""

    @abstractmethod
    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The indices of each client's examples: N ascending, disjoint int64 arrays that hold all examples.

        A partition that gives an example to several clients, or to none, must say so in its docstring. `strata` [n]
        int64 is the class of each example, `users` [n] int64 its natural client (None: the data set has no users). A
        pure function of the fields, the arguments and `rng`, which the run derives from its seed. Raises ValueError,
        named after the field, if the field does not allow a partition of these examples, and UserError if the data set
        does not fit the partition.
        """
