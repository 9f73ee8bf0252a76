"""Decentralised averaging (Khalil et al., TMLR 2024, DFML, Algorithm 2), for algorithms that differ in what their
clients minimise.
"""

from dataclasses import dataclass

from fedlab_runner.algorithms.shared.decentralized import (
    Clients,
    cluster_means,
    first_aggregator,
    pick_participants,
    record_exchange,
    shared_rows,
    train,
)
from fedlab_runner.core.additions import Penalty
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint
from fedlab_runner.core.own_models import OwnModels, first_models, updated


@dataclass(frozen=True)
class AveragingPeers(DecentralizedAlgorithm[Clients]):
    """The base of algorithms in which one client of a round averages the models that others send to it, architecture by
    architecture.
    """

    @property
    def penalty(self) -> Penalty | None:
        """What clients add to their loss: a function of their parameters and those that they start from."""
        return None

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        values, groups = fed.client_values // fed.num_clients, len(fed.families)
        held = shared_rows(self.store_on, fed, load, values, groups)
        return self.holding(held)

    def init(self, fed: Federation) -> Clients:
        return Clients(first_models(fed), first_aggregator(fed))

    def round(self, state: Clients, fed: Federation) -> Clients:
        meeting = pick_participants(fed, state.aggregator)
        trained = train(fed, state.models, meeting.participants, self.penalty)
        record_exchange(fed, [t.group for t in trained], meeting.aggregator)
        models = updated(fed, self.store_on, state.models, cluster_means(fed, trained))
        return Clients(models, meeting.next)

    def home_fault(self) -> str | None:
        return None

    def models(self, state: Clients) -> OwnModels:
        return state.models
