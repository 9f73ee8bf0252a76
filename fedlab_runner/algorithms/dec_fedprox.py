"""Decentralised FedProx (Khalil et al., TMLR 2024, DFML), Algorithm 2. https://arxiv.org/abs/2402.01863"""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.algorithms.shared.decentralized import (
    Clients,
    cluster_means,
    first_aggregator,
    pick_participants,
    record_exchange,
    shared_rows,
    train,
)
from fedlab_runner.core.additions import Proximal
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint
from fedlab_runner.core.own_models import OwnModels, first_models, updated
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class DecFedProx(DecentralizedAlgorithm[Clients]):
    """Decentralised FedAvg whose clients also minimise mu/2 ||W - W~||^2, the distance to their own model before the
    round.
    """

    mu: float

    step_copies: ClassVar[int] = 3  # the starts, in the order of the chunk too, and the penalty's gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, mu=self.mu)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        values, groups = fed.client_values // fed.num_clients, len(fed.families)
        held = shared_rows(self.store_on, fed, load, values, groups)
        return self.holding(held)

    def init(self, fed: Federation) -> Clients:
        return Clients(first_models(fed), first_aggregator(fed))

    def round(self, state: Clients, fed: Federation) -> Clients:
        meeting = pick_participants(fed, state.aggregator)
        trained = train(fed, state.models, meeting.participants, Proximal(self.mu))
        record_exchange(fed, [t.group for t in trained], meeting.aggregator)
        models = updated(fed, self.store_on, state.models, cluster_means(fed, trained))
        return Clients(models, meeting.next)

    def home_fault(self) -> str | None:
        return None

    def models(self, state: Clients) -> OwnModels:
        return state.models
