"""Decentralised FedProx (Khalil et al., TMLR 2024, DFML), Algorithm 2. https://arxiv.org/abs/2402.01863"""

from dataclasses import dataclass

from torch import Tensor

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
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class DecFedProx(DecentralizedAlgorithm[Clients]):
    """Decentralised FedAvg whose clients also minimise mu/2 ||W - W~||^2, the distance to their own model before the
    round.
    """

    mu: float

    def __post_init__(self) -> None:
        at_least(0, mu=self.mu)

    def init(self, fed: Federation) -> Clients:
        return Clients(initial_models(fed), first_aggregator(fed))

    def round(self, state: Clients, fed: Federation) -> Clients:
        meeting = pick_participants(fed, state.aggregator)

        def loss(model: FunctionalModel, batch: Batch, start: Tensor) -> Tensor:
            return model.family.loss(model, batch) + self.mu / 2 * (model.params - start).square().sum()

        trained = train(fed, state.models, meeting.participants, loss)
        record_exchange(fed, [t.group for t in trained], meeting.aggregator)
        return Clients(updated(state.models, cluster_means(fed, trained)), meeting.next)

    def home_fault(self) -> str | None:
        return None

    def models(self, state: Clients) -> Stacks:
        return state.models
