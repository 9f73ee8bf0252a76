"""The contract of a partition: the training examples of each client. n examples, N clients.

Each choice is a frozen dataclass in a file of this folder, with conf/partition/<file>.yaml.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fedlab_runner.utils.contract import require


class Partition(Protocol):
    """A rule that deals the training examples to the clients. The run applies it once, after loading the data."""

    @abstractmethod
    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """The indices of each client's examples: N int64 arrays, each of different indices in ascending order.

        Each example goes to one client. A partition that gives an example to several, or to none, must say so in its
        docstring. `strata` [n]
        int64 is the class of each example, `users` [n] int64 its natural client (None: the data set has no users). A
        pure function of the fields, the arguments and `rng`, which the run derives from its seed. Raises ValueError,
        named after the field, if the field does not allow a partition of these examples, and UserError if the data set
        does not fit the partition.
        """


def dealt(
    partition: Partition, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """The examples of each client. The partition may write into its arrays, which are copies. Raises UserError where
    the examples break the contract of `Partition.split`.
    """
    lists = partition.split(strata.copy(), None if users is None else users.copy(), num_clients, rng)
    contract = f"a list of {num_clients} ascending int64 arrays of the indices of {len(strata)} examples"
    require(isinstance(lists, list) and len(lists) == num_clients, partition, "split", contract, lists)
    broken = first_broken(lists, len(strata))
    require(broken is None, partition, "split", contract, None if broken is None else lists[broken])
    return lists


def first_broken(lists: Sequence[np.ndarray], size: int) -> int | None:
    """The first of the lists that is no ascending int64 array of different indices below `size`; None: all are."""
    kinds = (isinstance(each, np.ndarray) and each.dtype == np.int64 and each.ndim == 1 for each in lists)
    if (broken := next((i for i, right in enumerate(kinds) if not right), None)) is not None:
        return broken
    whole = np.concatenate([*lists, np.empty(0, np.int64)])
    owner = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
    wrong = (whole < 0) | (whole >= size)
    wrong[1:] |= (np.diff(whole) <= 0) & (owner[1:] == owner[:-1])
    return int(owner[wrong.argmax()]) if wrong.any() else None
