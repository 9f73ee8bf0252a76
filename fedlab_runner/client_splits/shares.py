"""Sets shares of each client's training examples aside, for validation and for the client's own test."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlab_runner.client_splits.base import ClientSplit, Parts, set_aside, share_of
from fedlab_runner.core.rng import Purpose
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.utils.validate import within


@dataclass(frozen=True)
class Shares(ClientSplit):
    """Sets floor(`test` * n) of a client's n examples aside for its own test, and floor(`validation` * n) for
    validation. The client trains on the rest.
    """

    validation: float
    test: float

    def __post_init__(self) -> None:
        within("[0, 1)", validation=self.validation, test=self.test)
        if self.validation + self.test >= 1:
            raise ValueError(f"test must be < 1 - validation ({1 - self.validation:g}), got {self.test}")

    def split(self, owned: Sequence[np.ndarray], train: Examples, test: Examples, seed: int) -> Parts:
        validating = share_of(self.validation, owned)
        tested = None
        if self.test:
            owned, tested = set_aside(owned, share_of(self.test, owned), seed, Purpose.OWN_TEST)
        kept, validation = set_aside(owned, validating, seed, Purpose.VALIDATION)
        return Parts(kept, validation, tested)
