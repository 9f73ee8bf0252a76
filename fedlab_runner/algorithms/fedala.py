"""FedALA (Zhang et al., AAAI 2023), Algorithm 1. https://arxiv.org/abs/2212.01197"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import make_update
from fedlab_runner.algorithms.shared.personal import Personal, PersonalState, PersonalUpdate
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, rows_of_each
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.optimizer import SGD, Bounded
from fedlab_runner.utils.validate import at_least, within

NEW, TRAINED, LEARNED = 0, 1, 2  # stages of a client: it has no model of its own; it has a model; it has weights too


@dataclass(frozen=True)
class FedALA(Personal):
    """FedAvg, whose clients start each round from theta_i + (theta - theta_i) * W_i, between their own model theta_i
    and the received one theta, value by value.

    The weights W_i are in [0, 1] on the last `layers` layers and 1 on the layers below. A client learns them by SGD,
    with rate `eta`, on a random `share` of its examples. It does so for the first time when it takes part for the
    second time: until the deviation of the last `window` losses is below `threshold`, or for `max_epochs`. Later it
    learns for one epoch. A client's personal model is the one that it trained last. Values at home are the client's own
    and never mixed. A late client gets its new model and weights when its update arrives. The other fields are those of
    FedAvg.
    """

    share: float
    layers: int
    eta: float
    threshold: float
    window: int
    max_epochs: int

    model_copies: ClassVar[int] = 4  # what is sent, what clients keep before and after, and the start
    step_copies: ClassVar[int] = 5  # the server's model, the client's, W and W's gradient in parts

    def __post_init__(self) -> None:
        within("(0, 1]", share=self.share)
        at_least(0, eta=self.eta, threshold=self.threshold)
        at_least(1, layers=self.layers, window=self.window, max_epochs=self.max_epochs)
        super().__post_init__()

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        size, mixed = fed.family.size, int(self._mixed(fed.family).sum())
        held = rows_of_each(self.store_on, load, size + mixed + 1)
        found = self.holding(held)
        return found._replace(payload_copies=found.payload_copies + round(mixed / size))

    def init(self, fed: Federation) -> PersonalState:
        """Each client keeps its model [D], its weights on the mixed layers, and its stage."""
        x = fed.family.init(fed.seed)
        weights = x.new_ones(int(self._mixed(fed.family).sum()))
        return PersonalState(x, torch.cat([x, weights, x.new_full((1,), NEW)]), personal={})

    def client_update(self, state: PersonalState, cohort: Cohort) -> PersonalUpdate:
        x, family = state.params, cohort.family
        p, d, mixed = family.num_params, family.size, self._mixed(family)
        kept = self.personal(state, cohort)
        stage = kept[:, -1:]
        # A new client has x for theta_i, so that its weights do not matter.
        theta_i = torch.where(mixed & (stage >= TRAINED), kept[:, :p], x[:p])
        weights = x.new_ones(len(cohort), p)
        weights[:, mixed] = kept[:, d:-1]
        learned, at_home = mixed, None if cohort.shared is None else cohort.shared == 0
        if at_home is not None:  # weights of 0 leave a client's own values as they are
            learned, weights = mixed & ~at_home, weights.masked_fill(at_home, 0)
            theta_i = torch.where(at_home, cohort.starts(x)[:, :p], theta_i)
        if learned.any():
            self._learn(cohort, x, theta_i, weights, stage.flatten().cpu().numpy(), learned)
        mixture = _mix(theta_i, x[:p], weights)
        if at_home is not None:
            mixture = torch.where(at_home, x[:p], mixture)  # as received: clients train from their own, and send none
        start = torch.cat([mixture, x[p:].expand(len(cohort), -1)], 1)
        y = cohort.train(start)
        own = torch.cat([y, weights[:, mixed], (stage + 1).clamp_max(LEARNED)], 1)
        return PersonalUpdate(*make_update(family, x, y, self.late_policy), own)

    def client_models(self, state: PersonalState, fed: Federation, ids: np.ndarray) -> Tensor:
        return fed.home.fill(super().client_models(state, fed, ids)[:, : fed.family.size], ids)

    def operations(self, fed: Federation, local: float) -> float:
        return local * (1 + self.share / (fed.local.epochs or 1))

    def _learn(
        self, cohort: Cohort, x: Tensor, theta_i: Tensor, weights: Tensor, stage: np.ndarray, learned: Tensor
    ) -> None:
        """Learns, in place, those weights of [K, P] that the mask `learned` [P] has, of clients with an own model."""
        family, p = cohort.family, cohort.family.num_params
        fixed = tuple(k for k, (i, _) in family.layout.items() if i < p and not learned[i])
        bounded = Bounded(SGD(momentum=0.0, nesterov=False, weight_decay=0.0), 0.0, 1.0)  # sigma

        active = np.flatnonzero(stage >= TRAINED)
        learners = cohort.alone().again(cohort.local.plain(), self.share)  # D_i^{s,t}
        learners.lr = self.eta
        losses: list[list[float]] = [[] for _ in stage]
        for _ in range(self.max_epochs):
            if not len(active):
                return
            some, rows = learners.select(active), torch.from_numpy(active).to(x.device)
            at = torch.cat([weights[rows], x[p:].expand(len(rows), -1)], 1)
            own = (theta_i[rows],)
            how: dict[str, Any] = {"frozen": fixed, "optimizer": bounded, "counted": False}
            moved = some.train(at, loss=_loss_of_weights, per_client=own, common=(x[:p],), **how)
            weights[rows] = moved[:, :p]
            assert some.last_loss is not None
            for k, value in zip(active.tolist(), some.last_loss.tolist(), strict=True):
                losses[k].append(value)
            active = np.array([k for k in active if stage[k] < LEARNED and not self._converged(losses[k])], np.int64)

    def _converged(self, losses: list[float]) -> bool:
        return len(losses) > self.window and float(np.std(losses[-self.window :])) < self.threshold

    def _mixed(self, family: ModelFamily) -> Tensor:
        """The mask [P] of the parameters of the last layers."""
        trainable = [name for name, (i, _) in family.layout.items() if i < family.num_params]
        last = list(dict.fromkeys(name.rpartition(".")[0] for name in trainable))[-self.layers :]
        parts = [torch.full((family.layout[k][1].numel(),), k.rpartition(".")[0] in last) for k in trainable]
        return torch.cat(parts).to(family.device)


def _mix(theta_i: Tensor, theta: Tensor, weights: Tensor) -> Tensor:
    """theta_i + (theta - theta_i) * W_i."""
    return theta_i + (theta - theta_i) * weights


def _loss_of_weights(model: FunctionalModel, batch: Batch, theta_i: Tensor, theta: Tensor) -> Tensor:
    """The family's loss at the mixture, as a function of the weights, which stand in place of the parameters."""
    model.params = _mix(theta_i, theta, model.params)
    return model.family.loss(model, batch)
