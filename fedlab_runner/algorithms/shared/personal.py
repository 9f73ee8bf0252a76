"""FedAvg's server, and personal models that clients keep to themselves, as rows in the client state store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import all_discarded, average, check_averaging
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.client_state import PLACES, RowRef
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, rows_of_each
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import one_of


class PersonalState(NamedTuple):
    """The server's model and what clients keep: R values each, a model and perhaps more."""

    params: Tensor  # x [D]
    first: Tensor  # [R], of a client whose update has not arrived yet
    personal: dict[int, RowRef]  # each [R], by client


class PersonalUpdate(NamedTuple):
    """FedAvg's Update, and the client's own values. Clients do not send these: algorithms have `personal` in
    `known`.
    """

    rows: Tensor  # y - x or y [K, P]
    statistics: Tensor  # as they are [K, B]
    personal: Tensor  # [K, R]


@dataclass(frozen=True)
class Personal(ServerAlgorithm[PersonalState, PersonalUpdate]):
    """The base of algorithms in which each client has a personal model, and the server averages another one.

    A late client gets its new values when its update arrives, as with `home`; in between it is busy. Clients keep their
    values on the device, the host or disk (`store_on`), even if the server discards the update. The other fields are
    those of FedAvg.
    """

    late_policy: str
    weighting: str
    server_lr: float
    store_on: str

    averages: ClassVar[bool] = True
    known: ClassVar[tuple[str, ...]] = ("personal",)
    model_copies: ClassVar[int] = 3  # the update, and the personal models before and after training
    payload_copies: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_averaging(self.late_policy, self.weighting, self.server_lr)
        one_of(PLACES, store_on=self.store_on)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        held = rows_of_each(self.store_on, load, fed.family.size)
        return self.holding(held)

    def init(self, fed: Federation) -> PersonalState:
        x = fed.family.init(fed.seed)
        return PersonalState(x, first=x, personal={})

    def personal(self, state: PersonalState, cohort: Cohort) -> Tensor:
        """What the clients of the cohort keep [K, R]."""
        rows = cohort.row_store(self.store_on, len(state.first))
        return rows.stacked(state.personal, cohort.client_ids.tolist(), state.first)

    def server_step(self, state: PersonalState, arrivals: Updates[PersonalUpdate], fed: Federation) -> PersonalState:
        rows, personal = fed.row_store(self.store_on, len(state.first)), dict(state.personal)
        for client, own in zip(arrivals.ids.tolist(), arrivals.upload.personal, strict=True):
            rows.replace(personal, client, own)
        x = average(state.params, arrivals, self.late_policy, self.weighting, self.server_lr)
        return PersonalState(x, state.first, personal)

    def client_models(self, state: PersonalState, fed: Federation, ids: np.ndarray) -> Tensor:
        """The personal models [k, D]."""
        return fed.row_store(self.store_on, len(state.first)).stacked(state.personal, ids.tolist(), state.first)

    def cached(self, state: PersonalState) -> int:
        return 0  # the clients keep their rows, and draw the first one from the seed

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving)
