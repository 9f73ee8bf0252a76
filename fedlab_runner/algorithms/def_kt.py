"""Def-KT (Li, Li and Varshney, IEEE IoT Journal 2021), Algorithm 1. https://arxiv.org/abs/2012.13063"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedlab_runner.algorithms.shared.decentralized import Clients, first_aggregator, train
from fedlab_runner.algorithms.shared.model_pairs import PairLoss
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.joined_models import Pair
from fedlab_runner.core.own_models import OwnModels, first_models, models_of, updated
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.round_cost import epoch_operations
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class DefKT(DecentralizedAlgorithm[Clients]):
    """Each sender trains its model and sends it to a receiver. There the received model and the receiver's model teach
    each other for `epochs` epochs. The receiver then keeps the received model.

    All clients have one architecture. Each sender has a receiver of its own. No client both sends and receives.
    """

    epochs: int

    heterogeneous: ClassVar[bool] = False  # a client's model is replaced by a received one
    model_copies: ClassVar[int] = 8  # of sender and receiver: before, trained, taught and joined in pairs
    training_copies: ClassVar[int] = 5  # what the senders trained, and pairs before and after training
    step_copies: ClassVar[int] = 5  # the second model, its gradient and its parts

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, epochs=self.epochs)

    def check(self, fed: Federation) -> None:
        if 2 * fed.cohort_size > fed.population:
            raise UserError(
                f"participation must be at most half of the {fed.population} clients that may train, because as many "
                f"receive, got {fed.cohort_size} senders"
            )

    def init(self, fed: Federation) -> Clients:
        return Clients(first_models(fed), first_aggregator(fed))

    def round(self, state: Clients, fed: Federation) -> Clients:
        senders, receivers = _pairs(fed)
        if not len(senders):
            return state
        (trained,) = train(fed, state.models, senders)
        pair, taught = fed.cohort(receivers).joined(Pair, fed.family, fed.family), trained.group._replace(ids=receivers)

        if self.epochs:
            cohort = fed.cohort(receivers, pair.family, replace(fed.local, epochs=self.epochs, steps=None))
            start, loss = (
                pair.join(trained.after, models_of(fed, state.models, taught)),
                PairLoss((1.0, 1.0), (1.0, 1.0)),
            )
            received, _ = pair.part(cohort.train(start, loss=loss, counted=False))
            if bool(cohort.finite.any()):
                fed.metrics.report(mutual_loss=_mean_loss(cohort))
        else:
            received = trained.after
        fed.metrics.count_payload(upload=trained.after.numel(), models=len(senders))
        new = [(trained.group, trained.after), (taught, received)]
        return Clients(updated(fed, self.store_on, state.models, new), state.aggregator)

    def changing(self, fed: Federation) -> int:
        return 2 * fed.cohort_size

    def operations(self, fed: Federation, local: float) -> float:
        return local + fed.cohort_size * epoch_operations(fed, self.epochs, 2)  # both models of a pair learn

    def models(self, state: Clients) -> OwnModels:
        return state.models


def _mean_loss(cohort: Cohort) -> float:
    """The mean loss over the last epoch of the pairs that are finite, at least one, weighted by examples."""
    assert cohort.last_loss is not None
    weights = cohort.num_examples.to(cohort.last_loss)[cohort.finite]
    return float(cohort.last_loss[cohort.finite] @ weights / weights.sum())


def _pairs(fed: Federation) -> tuple[np.ndarray, np.ndarray]:
    """Senders [s], in the order of sampling, and their receivers [s]. Each receiver is a neighbour of its sender."""
    clients = fed.participants
    senders = fed.sample_clients(clients)[: len(clients) // 2]
    rng, free = generator(fed.seed, Purpose.AGGREGATOR, fed.round), np.setdiff1d(clients, senders)
    pairs = []
    for sender in senders.tolist():
        reached = np.intersect1d(fed.neighbours(sender), free)
        if len(reached):
            receiver = int(rng.choice(reached))
            pairs.append((sender, receiver))
            free = free[free != receiver]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
