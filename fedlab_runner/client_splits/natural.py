"""The test examples of natural clients (Caldas et al., LEAF, 2018). https://arxiv.org/abs/1812.01097"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlab_runner.client_splits.base import ClientSplit, Parts, set_aside, share_of
from fedlab_runner.core.rng import Purpose
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import within


@dataclass(frozen=True)
class NaturalSplit(ClientSplit):
    """A client's own test examples are those of its users in the data set's test set. `validation` is the share of its
    training examples that it does not train on.

    Examples of users without a client belong to no client's test.
    """

    validation: float

    def __post_init__(self) -> None:
        within("[0, 1)", validation=self.validation)

    def split(self, owned: Sequence[np.ndarray], train: Examples, test: Examples, seed: int) -> Parts:
        if train.users is None or test.users is None:
            where = "data set" if train.users is None else "test set"
            raise UserError(f"client_split=natural needs a {where} with users, and this {where} has none")
        users, tested_users = train.users.numpy(), test.users.numpy()
        client_of = np.full(max(users.max(initial=-1), tested_users.max(initial=-1)) + 1, -1)
        for client, mine in enumerate(owned):
            own = np.unique(users[mine])
            if (client_of[own] >= 0).any():
                raise UserError("client_split=natural needs clients that share no user: choose partition=natural")
            client_of[own] = client
        client = client_of[tested_users]
        kept, validation = set_aside(owned, share_of(self.validation, owned), seed, Purpose.VALIDATION)
        return Parts(kept, validation, [np.flatnonzero(client == i) for i in range(len(owned))], from_test_set=True)
