"""Building blocks of decentralised algorithms: participants, local training of all architectures, cluster means."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.additions import Penalty
from fedlab_runner.core.architectures import ClientGroup
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, MemoryItem, client_rows
from fedlab_runner.core.own_models import OwnModels, models_of
from fedlab_runner.core.rng import Purpose, generator


class Clients(NamedTuple):
    """The State of an algorithm that keeps only the clients' models."""

    models: OwnModels  # W_n
    aggregator: int  # of the next round


class Meeting(NamedTuple):
    """The clients that take part in a round."""

    aggregator: int
    senders: np.ndarray  # S [s]
    participants: np.ndarray  # P, the senders and the aggregator, in ascending order
    next: int  # the aggregator of the next round


class TrainedGroup(NamedTuple):
    """Participants of one architecture after local training."""

    group: ClientGroup
    before: Tensor  # [k, D_a]
    after: Tensor  # [k, D_a]


def first_aggregator(fed: Federation) -> int:
    """The lowest id of the clients that may train (DFML, section 3.1)."""
    return int(fed.participants[0])


def pick_participants(fed: Federation, aggregator: int) -> Meeting:
    """The aggregator, its neighbours that send in this round, and the neighbour that aggregates in the next round."""
    neighbours = fed.neighbours(aggregator)
    senders = fed.sample_clients(neighbours)
    named = generator(fed.seed, Purpose.AGGREGATOR, fed.round).choice(neighbours) if len(neighbours) else aggregator
    return Meeting(aggregator, senders, np.sort(np.append(senders, aggregator)), int(named))


def train(fed: Federation, models: OwnModels, ids: np.ndarray, penalty: Penalty | None = None) -> list[TrainedGroup]:
    """Trains clients `ids`, one call for each architecture.

    The loss includes `penalty(parameters, start)`, where `start` holds the parameters that the client starts from.
    """
    done = []
    for group in fed.by_architecture(ids):
        before = models_of(fed, models, group)
        start = () if penalty is None else (before[:, : group.family.num_params],)
        after = fed.cohort(group.ids, group.family).train(before, penalty=penalty, per_client=start)
        done.append(TrainedGroup(group, before, after))
    return done


def shared_rows(place: str, fed: Federation, load: CohortLoad, values: int, groups: int = 1) -> list[MemoryItem]:
    """The clients' rows of `values` values each. The participants of a round get the same row in each of `groups`
    groups; in memory they share it.

    After many rounds, some client still holds a share H_m / m of the rows of a round of m clients.
    """
    m = max(1, (fed.cohort_size + 1) // groups)
    share = 1.0 if place == "disk" else sum(1 / i for i in range(1, m + 1)) / m
    return client_rows(place, int(share * load.ever * values), groups * values)


def record_exchange(fed: Federation, groups: Iterable[ClientGroup], aggregator: int) -> None:
    """Counts that all clients of the groups, except the aggregator, send their models and receive new models."""
    sizes = [(int((group.ids != aggregator).sum()), fed.home.num_shared(group.family)) for group in groups]
    values, models = sum(n * size for n, size in sizes), sum(n for n, _ in sizes)
    fed.metrics.count_payload(upload=values, download=values, models=2 * models)


def cluster_means(fed: Federation, trained: Iterable[TrainedGroup]) -> Iterator[tuple[ClientGroup, Tensor]]:
    """For each architecture the mean [D_a] of its participants' models, weighted by examples (DFML, Eq 5). If parts
    stay at home, it is the mean with each participant's own values at home [k, D_a].
    """
    for group, _, after in trained:
        weights = torch.from_numpy(fed.client_data.num_examples[group.ids]).to(after)
        fed.metrics.count_server_flops(2 * after.numel())
        yield group, fed.home.own(group.family, after, torch.tensordot(weights / weights.sum(), after, 1))
