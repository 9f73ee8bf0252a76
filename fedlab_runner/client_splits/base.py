"""The contract of a client split: the training, validation and test examples of each client. N clients.

Each choice is a frozen dataclass in a file of this folder, with conf/client_split/<file>.yaml.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fedlab_runner.core.rng import Purpose, generators
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.partitions.base import first_broken
from fedlab_runner.utils.contract import require
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.rounding import rounded_down

Lists = list[np.ndarray]  # N ascending int64 arrays of indices


class Parts(NamedTuple):
    """The examples of each client by use; no example of a client is in two parts."""

    train: Lists  # indices of training examples
    validation: Lists  # indices of training examples
    test: Lists | None  # indices of training examples or, with `from_test_set`, of test examples; None: no test part
    from_test_set: bool = False


class ClientSplit(Protocol):
    """A rule that splits each client's examples. The run applies it once, after the partition."""

    @abstractmethod
    def split(self, owned: Sequence[np.ndarray], train: Examples, test: Examples, seed: int) -> Parts:
        """The parts of each client, from the training examples that the partition has given it.

        `owned` has N ascending int64 arrays of indices into `train`; `test` is the global test set. A pure function of
        the fields and the arguments: client i's draw depends only on (seed, i) and its own examples or, if clients
        divide the test set, on all clients' examples. Raises ValueError, named after the field, or UserError, if the
        examples do not allow this split.
        """


def checked_split(rule: ClientSplit, owned: Sequence[np.ndarray], train: Examples, test: Examples, seed: int) -> Parts:
    """The parts of each client. Raises UserError where they break the contract of `ClientSplit.split`."""
    parts = rule.split([mine.copy() for mine in owned], train.lent(), test.lent(), seed)
    sizes = {"train": len(train.targets), "validation": len(train.targets)}
    if parts.test is not None:
        sizes["test"] = len((test if parts.from_test_set else train).targets)
    for name, size in sizes.items():
        lists = getattr(parts, name)
        words = f"as {name} a list of {len(owned)} ascending int64 arrays of the indices of {size} examples"
        require(len(lists) == len(owned), rule, "split", words, lists)
        broken = first_broken(lists, size)
        require(broken is None, rule, "split", words, None if broken is None else lists[broken])
    return parts


def set_aside(owned: Sequence[np.ndarray], sizes: np.ndarray, seed: int, purpose: Purpose) -> tuple[Lists, Lists]:
    """The examples that each client keeps, and the `sizes` [N] examples set aside, drawn by each client's key.

    `purpose` is VALIDATION or OWN_TEST. Raises UserError where several clients hold an example.
    """
    if sizes.any() and len(everything := np.concatenate(owned)) > len(np.unique(everything)):
        use, instead = ("test", "; choose client_split=redealt") if purpose is Purpose.OWN_TEST else ("validation", "")
        raise UserError(
            f"client_split.{use} must be 0 where several clients hold an example: another client would train on "
            f"it{instead}"
        )
    kept, aside = [], []
    draws = zip(owned, sizes.tolist(), generators(seed, purpose, 0, np.arange(len(owned))), strict=True)
    for mine, size, rng in draws:
        order = rng.permutation(len(mine))
        kept.append(mine[np.sort(order[size:])])
        aside.append(mine[np.sort(order[:size])])
    return kept, aside


def share_of(share: float, owned: Sequence[np.ndarray]) -> np.ndarray:
    """floor(share * n) of each client's n examples [N] int64."""
    return np.array([rounded_down(share * len(mine)) for mine in owned], np.int64)
