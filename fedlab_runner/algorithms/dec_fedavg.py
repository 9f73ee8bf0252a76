"""Decentralised FedAvg (Khalil et al., TMLR 2024, DFML), Algorithm 2. https://arxiv.org/abs/2402.01863"""

from dataclasses import dataclass

from fedlab_runner.algorithms.shared.decentralized import (
    Clients,
    cluster_means,
    first_aggregator,
    initial_models,
    pick_participants,
    record_exchange,
    train,
    updated,
)
from fedlab_runner.core.algorithm import DecentralizedAlgorithm, Stacks
from fedlab_runner.core.federation import Federation


@dataclass(frozen=True)
class DecFedAvg(DecentralizedAlgorithm[Clients]):
    """In each round one client averages the models that others send it, architecture by architecture."""

    def init(self, fed: Federation) -> Clients:
        return Clients(initial_models(fed), first_aggregator(fed))

    def round(self, state: Clients, fed: Federation) -> Clients:
        meeting = pick_participants(fed, state.aggregator)
        trained = train(fed, state.models, meeting.participants)
        record_exchange(fed, [t.group for t in trained], meeting.aggregator)
        return Clients(updated(state.models, cluster_means(fed, trained)), meeting.next)

    def home_fault(self) -> str | None:
        return None

    def models(self, state: Clients) -> Stacks:
        return state.models
