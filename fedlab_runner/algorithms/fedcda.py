"""FedCDA (Wang, Xu, Li, Xu, Li and Zhang, ICLR 2024), Algorithm 1: cross-round divergence-aware aggregation.
https://openreview.net/forum?id=nbPGqeH3lt
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.model_choice import products, search
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.client_state import PLACES, RowRef, RowStore
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, client_rows
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.validate import at_least, one_of, within

_log = logging.getLogger(__name__)

STRATEGIES = ("approximate", "optimal", "newest", "random")  # values of the field `strategy`
MAX_COMBINATIONS = 2**20  # of a batch: 8 MB of objectives, some milliseconds for each client of the batch


class FedCDAUpload(NamedTuple):
    """A client's model, and its mean loss in its last local epoch."""

    models: Tensor  # w^n [K, D]
    losses: Tensor  # F_n [K, 1]


class CachedModel(NamedTuple):
    """One cached model."""

    model: RowRef  # w [D]
    loss: float  # F_n(w)
    square: float  # ||w||^2 over the parameters
    round: int  # in which the client received the server model


class FedCDAState(NamedTuple):
    """The server model and, for each client that has reported, its last models and the place of the one in use."""

    params: Tensor  # w [D]
    total: Tensor  # [D] float64, the sum of the models in use
    caches: dict[int, list[CachedModel]]  # by client, the newest model first
    chosen: dict[int, int]  # by client, the place of the model in use in its cache


@dataclass(frozen=True)
class FedCDA(ServerAlgorithm[FedCDAState, FedCDAUpload]):
    """The server keeps the last `memory` (K) models of every client. It averages one model of each client that has ever
    reported, and chooses these models for small losses and little divergence.

    The choice minimises mean F_n(w_n) + L/2 mean ||w_n - w||^2 (Eq 5; `smoothness` is L, norms are over parameters), by
    the `strategy` approximate (Eq 8: the clients that report choose again, in `batches` (B) random groups, among all
    combinations within a group) or optimal (Eq 5: all clients, all combinations). Among equal combinations the newest
    models win. With newest or random, a client that reports takes its newest or any cached model.

    In the first `warmup` rounds the server acts as in FedAvg and fills the caches. It keeps the cached models on the
    device, the host or disk (`store_on`).
    """

    memory: int
    batches: int
    warmup: int
    smoothness: float
    strategy: str
    store_on: str

    model_copies: ClassVar[int] = 1  # clients send the trained models

    def __post_init__(self) -> None:
        within(f"[1, {MAX_COMBINATIONS}]", memory=self.memory)
        at_least(1, batches=self.batches)
        at_least(0, warmup=self.warmup, smoothness=self.smoothness)
        one_of(STRATEGIES, strategy=self.strategy)
        one_of(PLACES, store_on=self.store_on)

    def check(self, fed: Federation) -> None:
        clients, most = fed.cohort_size, self._largest_batch
        if self.strategy == "optimal" and fed.population > most:
            tried = f"{self.memory}^{fed.population} combinations a round, more than {MAX_COMBINATIONS:,}"
            raise ValueError(f"strategy must be approximate for {fed.population} clients: optimal tries {tried}")
        if self.strategy != "approximate":
            return
        if -(-clients // self.batches) > most:
            tried = f"{self.memory}^{-(-clients // self.batches)} combinations a batch, more than {MAX_COMBINATIONS:,}"
            least = -(-clients // most)
            raise ValueError(f"batches must be >= {least} for {clients} clients a round, got {self.batches}: {tried}")
        if self.batches > clients:
            _log.warning(
                "algorithm.batches is %d, but a round has %s: there can be no more batches",
                self.batches,
                count_of(clients, "client"),
            )

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        models, size = min(self.memory * load.ever, load.trained), fed.family.size
        held = client_rows(self.store_on, models * size, load.starting * size, renewed=1 / self.memory)
        return self.holding(held)

    def init(self, fed: Federation) -> FedCDAState:
        x = fed.family.init(fed.seed)
        return FedCDAState(x, torch.zeros_like(x, dtype=torch.float64), {}, {})

    def client_update(self, state: FedCDAState, cohort: Cohort) -> FedCDAUpload:
        y = cohort.train(state.params)
        assert cohort.last_loss is not None
        return FedCDAUpload(y, cohort.last_loss.unsqueeze(1))

    def server_step(self, state: FedCDAState, arrivals: Updates[FedCDAUpload], fed: Federation) -> FedCDAState:
        if not len(arrivals):
            return state
        rows = fed.row_store(self.store_on, fed.family.size)
        ids, warmed_up = arrivals.ids.tolist(), fed.round >= self.warmup
        caches = {n: [*cache] for n, cache in state.caches.items()}
        free = list(caches) if warmed_up and self.strategy == "optimal" else [n for n in ids if n in caches]
        total = self._without(state, caches, free, rows)
        self._push(caches, arrivals, rows, fed)  # line 8
        free = list(caches) if warmed_up and self.strategy == "optimal" else ids
        chosen, tried = dict(state.chosen), 0
        for n in free:
            chosen.pop(n, None)
        if not warmed_up or self.strategy == "newest":
            picks = dict.fromkeys(free, 0)
        elif self.strategy == "random":
            rng = generator(fed.seed, Purpose.ALGORITHM, fed.round)
            picks = {n: int(rng.integers(len(caches[n]))) for n in free}
        else:
            picks = {}
        for n, place in picks.items():
            total += rows.get(caches[n][place].model)
        chosen |= picks
        if len(picks) < len(free):
            with fed.metrics.timed("selection"):  # line 9
                tried = self._select(state.params, total, caches, chosen, self._groups(free, fed), rows, fed)
        fed.metrics.report(
            objective=self._objective(total, caches, chosen, fed.family.num_params),
            not_newest=sum(place > 0 for place in chosen.values()),
            combinations=tried,
            cached_clients=len(caches),
        )
        mean = (total / len(chosen)).to(state.params.dtype)  # line 10
        if fed.family.num_buffers:
            used = [caches[n][place].model for n, place in chosen.items()]
            mean[fed.family.num_params :] = _mean(used, slice(fed.family.num_params, None), rows)
        return FedCDAState(mean if warmed_up else arrivals.mean(arrivals.upload.models), total, caches, chosen)

    def _without(
        self, state: FedCDAState, caches: Mapping[int, Sequence[CachedModel]], free: Sequence[int], rows: RowStore
    ) -> Tensor:
        """The sum [D] of the models in use, without the models of the clients `free`, which choose again."""
        if len(free) == len(caches):
            return torch.zeros_like(state.total)
        total = state.total.clone()
        for n in free:
            total -= rows.get(caches[n][state.chosen[n]].model)
        return total

    def _push(
        self, caches: dict[int, list[CachedModel]], arrivals: Updates[FedCDAUpload], rows: RowStore, fed: Federation
    ) -> None:
        """Puts the arrived models in front of their clients' caches, and drops the oldest models beyond K."""
        sent = (fed.round - arrivals.staleness).tolist()
        for n, w, loss, round in zip(arrivals.ids.tolist(), *arrivals.upload, sent, strict=True):
            params = w[: fed.family.num_params].double()
            square = float(torch.dot(params, params))
            caches[n] = [CachedModel(rows.put(w), float(loss), square, round), *caches.get(n, ())]
            for entry in caches[n][self.memory :]:
                rows.drop(entry.model)
            del caches[n][self.memory :]

    @property
    def _largest_batch(self) -> int | float:
        """The largest number of clients with full caches that may choose together."""
        return math.inf if self.memory == 1 else math.floor(math.log(MAX_COMBINATIONS) / math.log(self.memory))

    def _groups(self, free: Sequence[int], fed: Federation) -> list[list[int]]:
        """The clients `free` in `batches` batches, or in more if very many clients report at once."""
        if self.strategy == "optimal":
            return [sorted(free)]
        order = generator(fed.seed, Purpose.ALGORITHM, fed.round).permutation(np.array(free))
        number = max(min(self.batches, len(order)), math.ceil(len(order) / self._largest_batch))
        return [batch.tolist() for batch in np.array_split(order, number)]

    def _select(
        self,
        x: Tensor,
        total: Tensor,
        caches: Mapping[int, Sequence[CachedModel]],
        chosen: dict[int, int],
        groups: Sequence[Sequence[int]],
        rows: RowStore,
        fed: Federation,
    ) -> int:
        """Chooses batch by batch (Eq 8), updates `total` and `chosen`, and returns the number of combinations tried."""
        tried = 0
        for group in groups:
            sizes = [len(caches[n]) for n in group]
            entries = [entry for n in group for entry in caches[n]]
            gram, cross = products([e.model for e in entries], x, total, len(chosen), fed.family.num_params, rows)
            fed.metrics.count_server_flops(2 * fed.family.num_params * len(entries) * (len(entries) + 1))
            losses = np.array([e.loss for e in entries])
            places = search(gram, cross, losses, sizes, fixed=len(chosen), smoothness=self.smoothness)
            for n, place in zip(group, places, strict=True):
                chosen[n] = place
                total += rows.get(caches[n][place].model)
            tried += math.prod(sizes)
        return tried

    def _objective(
        self, total: Tensor, caches: Mapping[int, Sequence[CachedModel]], chosen: Mapping[int, int], num_params: int
    ) -> float:
        """J of the models in use: mean F + L/2 mean ||w_n - w||^2 (Eq 5)."""
        used = [caches[n][place] for n, place in chosen.items()]
        mean = total[:num_params] / len(used)
        square = float(torch.dot(mean, mean))
        divergence = sum(e.square for e in used) / len(used) - square
        return sum(e.loss for e in used) / len(used) + self.smoothness / 2 * max(divergence, 0.0)

    def operations(self, fed: Federation, local: float) -> float:
        if self.strategy in ("newest", "random"):
            return local
        clients, batches = fed.cohort_size, min(self.batches, fed.cohort_size)
        if self.strategy == "optimal":
            clients, batches = fed.population, 1
        entries = self.memory * clients / batches  # of full caches
        return local + batches * 2 * fed.family.num_params * entries * (entries + 1)

    def cached(self, state: FedCDAState) -> int:
        return len(state.params) * (sum(map(len, state.caches.values())) + 1)  # the models and their sum


def _mean(models: Sequence[RowRef], columns: slice, rows: RowStore) -> Tensor:
    """The mean of some columns of the models in use. A sum that models join and leave may end below zero by rounding,
    where all variances are next to nothing; this one has only terms that are not negative.
    """
    return torch.stack([rows.get(model, columns).double() for model in models]).mean(0)
