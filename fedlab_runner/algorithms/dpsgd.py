"""D-PSGD (Lian et al., NeurIPS 2017), Algorithm 1: gossip. https://arxiv.org/abs/1705.09056"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.decentralized import TrainedGroup, train
from fedlab_runner.algorithms.shared.width_slicing import check_sliceable, places
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.own_models import OwnModels, first_models, updated
from fedlab_runner.topologies.graphs import metropolis, spectral_gap
from fedlab_runner.utils.validate import one_of

_log = logging.getLogger("fedlab_runner")
ORDERS = ("train_then_average", "average_while_training")  # values of the field `order`
MAX_DECOMPOSED = 2000  # clients of a graph up to which the run computes its spectral gap, in some seconds
SPARSE = 40  # elements of W for one that is not zero, from which a CPU is faster without the zeros


class DPSGDState(NamedTuple):
    """The clients' models."""

    models: OwnModels  # x_i


@dataclass(frozen=True)
class DPSGD(DecentralizedAlgorithm[DPSGDState]):
    """In each round the participating clients train, and each averages its model with the models of its participating
    neighbours, by Metropolis weights W.

    `participation` says who takes part; in the paper all clients do. With `order` train_then_average clients average
    the trained models y: x <- W y. With average_while_training, as in Algorithm 1, they average the models from before
    training, and each client adds its change: x <- W x + y - x. The paper's clients take one local step. Clients
    average batch norm's statistics after training.

    If models differ in width, each model is the first channels of the next wider one, layer by layer. Then the clients
    that have a value average it, by the weights of their part of the graph.
    """

    order: str

    model_copies: ClassVar[int] = 4  # before and after training, side by side, and averaged

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(ORDERS, order=self.order)

    def check(self, fed: Federation) -> None:
        if len(fed.families) > 1:
            check_sliceable(self, fed)
        clients = fed.participants
        if 0 < len(clients) <= MAX_DECOMPOSED:
            gap = spectral_gap(metropolis(_links(fed, clients)))
            _log.info("gossip among all %d clients has the spectral gap %.3g (Metropolis weights)", len(clients), gap)

    def init(self, fed: Federation) -> DPSGDState:
        return DPSGDState(first_models(fed))

    def round(self, state: DPSGDState, fed: Federation) -> DPSGDState:
        ids = np.sort(fed.sample_clients(fed.participants))
        linked = _links(fed, ids)
        trained = train(fed, state.models, ids)
        sent = [t.after if self.order == ORDERS[0] else _before(t) for t in trained]
        new = _gossip(ids, linked, trained, sent, fed)
        if self.order != ORDERS[0]:
            for t, rows in zip(trained, new, strict=True):
                p = t.group.family.num_params
                rows[:, :p] += t.after[:, :p] - t.before[:, :p]
        new = [fed.home.own(t.group.family, t.after, rows) for t, rows in zip(trained, new, strict=True)]
        apart = [(rows - rows.mean(0)) * ~fed.home.mask(t.group.family) for t, rows in zip(trained, new, strict=True)]
        distances = [each.square().sum(1) for each in apart]
        fed.metrics.count_payload(models=int(linked.sum()))
        fed.metrics.report(
            neighbours=float(linked.sum() / max(1, len(ids))),
            consensus_distance=float(torch.cat(distances).mean().sqrt()) if len(ids) else 0.0,
        )
        groups = [t.group for t in trained]
        return DPSGDState(updated(fed, self.store_on, state.models, zip(groups, new, strict=True)))

    def operations(self, fed: Federation, local: float) -> float:
        return local

    def changing(self, fed: Federation) -> int:
        return fed.cohort_size

    def home_fault(self) -> str | None:
        return None

    def models(self, state: DPSGDState) -> OwnModels:
        return state.models


def _links(fed: Federation, ids: np.ndarray) -> np.ndarray:
    """The links among some of the clients [k, k] bool."""
    return ~np.eye(len(ids), dtype=bool) if fed.topology is None else fed.topology[np.ix_(ids, ids)]


def _before(trained: TrainedGroup) -> Tensor:
    """What clients send [k, D]: their parameters from before training, and batch norm's statistics from after it."""
    p = trained.group.family.num_params
    return torch.cat([trained.before[:, :p], trained.after[:, p:]], 1)


def _gossip(
    ids: np.ndarray, linked: np.ndarray, trained: Sequence[TrainedGroup], sent: Sequence[Tensor], fed: Federation
) -> list[Tensor]:
    """The average of each client's and its neighbours' models `sent` [k, D_a], group by group.

    All clients average the values of the narrowest models. The clients with wider models average the values that the
    next wider models have besides, and so on. Two clients send each other the values that both have and that do not
    stay at home.
    """
    if len(trained) <= 1 and not fed.home.acts:
        return [_averaged(models, linked, fed) for models in sent]
    if not trained:
        return []
    order = sorted(range(len(trained)), key=lambda g: trained[g].group.family.num_params)
    wide = trained[order[-1]].group.family
    columns = [places(t.group.family, wide, lambda label, k, of: torch.arange(k)) for t in trained]
    rows = [torch.from_numpy(np.searchsorted(ids, t.group.ids)).to(wide.device).unsqueeze(1) for t in trained]
    whole = sent[0].new_zeros(len(ids), wide.size)
    for mine, index, models in zip(rows, columns, sent, strict=True):
        whole[mine, index] = models
    done = fed.home.mask(wide).clone()
    for place, g in enumerate(order):
        fresh = columns[g][~done[columns[g]]]
        done[fresh] = True
        owners = torch.cat([rows[other] for other in order[place:]]).sort(0).values
        among = owners[:, 0].cpu().numpy()
        whole[owners, fresh] = _averaged(whole[owners, fresh], linked[np.ix_(among, among)], fed)
    return [whole[mine, index] for mine, index in zip(rows, columns, strict=True)]


def _averaged(values: Tensor, linked: np.ndarray, fed: Federation) -> Tensor:
    """W values [k, n], for k clients with these links [k, k]; counts what they send."""
    sent = int(linked.sum()) * values.shape[1]
    fed.metrics.count_payload(upload=sent)
    fed.metrics.count_server_flops(2 * (sent + values.numel()))
    weights = torch.from_numpy(metropolis(linked)).to(values)
    if values.device.type == "cpu" and SPARSE * (int(linked.sum()) + len(linked)) < linked.size:
        weights = weights.to_sparse()
    return weights @ values
