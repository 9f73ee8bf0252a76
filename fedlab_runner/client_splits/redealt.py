"""Divides the global test set among the clients, class by class, in proportion to their training examples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlab_runner.client_splits.base import ClientSplit, Parts, set_aside, share_of
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.utils.validate import within


@dataclass(frozen=True)
class Redealt(ClientSplit):
    """A client's own test examples have the label distribution of the examples that the partition gave it.

    Each test example goes to one client. A client with a share s of the training examples of a class gets a share s of
    the class's test examples, in whole examples (the largest remainders are rounded up, of equal ones random ones).
    Test examples of a class that no client holds go to nobody. Classes are those that the partition sees. `validation`
    is the share of a client's training examples that it does not train on.
    """

    validation: float

    def __post_init__(self) -> None:
        within("[0, 1)", validation=self.validation)

    def split(self, owned: Sequence[np.ndarray], train: Examples, test: Examples, seed: int) -> Parts:
        labels, tested = train.strata.numpy(), test.strata.numpy()
        owners = np.repeat(np.arange(len(owned)), [len(mine) for mine in owned])
        given = labels[np.concatenate(owned)]
        client = np.full(len(tested), -1)
        rng = generator(seed, Purpose.OWN_TEST)
        for label in np.unique(tested).tolist():
            places = rng.permutation(np.flatnonzero(tested == label))
            held = np.bincount(owners[given == label], minlength=len(owned))
            order = rng.permutation(len(owned))  # of clients with equal remainders none comes first in every class
            if held.any():
                client[places] = np.repeat(order, proportional(held[order], len(places)))
        kept, validation = set_aside(owned, share_of(self.validation, owned), seed, Purpose.VALIDATION)
        return Parts(kept, validation, [np.flatnonzero(client == i) for i in range(len(owned))], from_test_set=True)


def proportional(weights: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers [N] that sum to `total`, in proportion to weights [N]. The largest remainders are rounded up; among
    equal remainders the first.
    """
    exact = weights * total
    counts, rest = np.divmod(exact, weights.sum())
    counts[np.argsort(-rest, kind="stable")[: total - counts.sum()]] += 1
    return counts
