"""Stand-alone training: each client trains alone and sends nothing (HyFEM, section 4, and elsewhere)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedlab_runner.algorithms.shared.averaging import Models
from fedlab_runner.algorithms.shared.feature_blocks import Layout, blocks_of, train_on_blocks
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.architectures import ClientGroup
from fedlab_runner.core.client_state import PLACES
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, own_rows
from fedlab_runner.core.own_models import OwnModels, models_of, updated
from fedlab_runner.utils.validate import one_of


class StandaloneState(NamedTuple):
    """The clients' models."""

    own: OwnModels


@dataclass(frozen=True)
class Standalone(Algorithm[StandaloneState]):
    """Clients train their own models, all from one start, and send nothing. Test metrics are means over the clients.

    A client with some feature blocks has the part of the model that reads them. A late client trains from the model
    that it had at its start. Clients keep their models on the device, the host or disk (`store_on`).
    """

    store_on: str

    holds_blocks: ClassVar[bool] = True
    model_copies: ClassVar[int] = 2  # before and after training

    def __post_init__(self) -> None:
        one_of(PLACES, store_on=self.store_on)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        return self.holding(own_rows(self.store_on, fed, load))

    def init(self, fed: Federation) -> StandaloneState:
        layout, x = Layout.of(fed.family), fed.family.init(fed.seed)
        places = layout.first_places(1, x.device)[0]
        theirs = blocks_of(fed)
        first = {blocks: layout.take(x, blocks, places) for blocks in set(theirs)}
        return StandaloneState({client: first[blocks] for client, blocks in enumerate(theirs)})

    def round(self, state: StandaloneState, fed: Federation) -> StandaloneState:
        cohort = fed.start_cohort(())
        everyone = ClientGroup(0, fed.family, cohort.client_ids)
        y = train_on_blocks(cohort, fed.blocks, models_of(fed, state.own, everyone))
        arrivals = fed.collect_updates(cohort, Models(y), known=("models",))  # late clients get their model later
        of_them = everyone._replace(ids=arrivals.ids.cpu().numpy())
        return StandaloneState(updated(fed, self.store_on, state.own, [(of_them, arrivals.upload.models)]))

    def models(self, state: StandaloneState) -> OwnModels:
        return state.own
