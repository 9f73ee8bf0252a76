"""The updates of a cohort that arrive at once, those on their way, and what arrives in a round of both."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.aggregation import Aggregation
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.parts import Elsewhere, Later, Part, PartClients, PartsJob, part_of, reported, send, values_in
from fedlab_runner.core.running_sums import RunningSums
from fedlab_runner.core.trainer import LocalTrainer
from fedlab_runner.core.updates import PendingUpdate, Updates, Upload, gathered, like, staleness_metrics


class Deliveries:
    """Sends updates on their way, and hands over those that are due."""

    def __init__(self, trainer: LocalTrainer, home: ClientHomes, aggregation: Aggregation | None) -> None:
        self._trainer, self._home, self.aggregation = trainer, home, aggregation
        self._in_flight: dict[int, list[PendingUpdate]] = {}  # by the round of arrival
        self.averaged: list[bool] = []  # an entry for each mean that was taken of the updates of the last delivery
        self.losses: list[float] = []  # of the updates that have arrived in this round, where clients report them

    def of_cohort(self, cohort: Cohort, upload: Upload, known: Collection[str]) -> Updates[Upload]:
        """See `Federation.collect_updates`."""
        now, later = send(cohort, upload, self._trainer.guard, self._home)
        late = self._due(cohort.round, later)
        if late or not bool(now.all()):
            index = now.nonzero().flatten()
            upload = like(upload, (gathered([f.upload[i] for f in late], rows, index) for i, rows in enumerate(upload)))
        arrivals = self._arrivals(upload, cohort.round, cohort.ids[now], cohort.num_examples[now], late, known)
        values = values_in(upload, known, self._home)
        self._record(len(cohort), arrivals, values, [*_losses(late), *reported(cohort, now)])
        return arrivals

    def of_parts(
        self, cohort: Cohort, size: int, update: Callable[[Cohort], Upload], known: Collection[str]
    ) -> Updates[Upload]:
        """See `Federation.deliver`; a part has `size` clients."""
        sums, later, losses, values = RunningSums(), list[Later](), list[float](), Counter[int]()
        for part in self._parts(cohort, size, update, known):
            sums.add(part.sums, part.counts)
            later, losses, values = later + part.late, losses + part.losses, values + part.values
            del part  # before the next one trains
        means, late = sums.means(), self._due(cohort.round, later)
        for f in late:
            values += values_in(like(means.upload, (row.unsqueeze(0) for row in f.upload)), known, self._home)
        every = torch.arange(len(means.clients), device=means.clients.device)
        rows = (gathered([f.upload[i] for f in late], rows, every) for i, rows in enumerate(means.upload))
        numbers = torch.full_like(means.clients, -1), means.num_examples
        arrivals = self._arrivals(like(means.upload, rows), cohort.round, *numbers, late, known, means.clients)
        self._record(len(cohort), arrivals, values, [*_losses(late), *losses])
        return arrivals

    def _parts(
        self, cohort: Cohort, size: int, update: Callable[[Cohort], Upload], known: Collection[str]
    ) -> Iterator[Part]:
        """What each part of the cohort sends, in their order."""
        trainer, parts = self._trainer, cohort.parts(size)
        executor, alone = trainer.executor, not self._home.acts and cohort.local.update_norm is None
        if isinstance(executor, Elsewhere) and alone and trainer.guard.stops:
            now = cohort.local, cohort.lr, trainer.seed, cohort.round, trainer.losses_reported
            job = PartsJob(update, known, cohort.family, trainer.client_data, *now)
            kind = update(cohort.select(np.arange(0)))  # an upload of nobody: its class here, which own code may define
            for told in executor.carry_out(job, [PartClients(each.client_ids, each.due) for each in parts]):
                trainer.metrics.add(told.metrics)
                yield told.part._replace(sums=like(kind, told.part.sums))
            return
        for each in parts:
            yield part_of(each, update(each), known, trainer.guard, self._home)

    def _due(self, round: int, later: list[Later]) -> list[PendingUpdate]:
        """The updates that are due in a round; `later` ones are on their way from now on."""
        for due, update in later:
            self._in_flight.setdefault(due, []).append(update)
        return self._in_flight.pop(round, [])

    def state_dict(self) -> dict[int, list[PendingUpdate]]:
        """The updates on their way."""
        return {due: list(pending) for due, pending in self._in_flight.items()}

    def load_state_dict(self, state: dict[int, Any], num_clients: int) -> None:
        """Continues from a saved state. Raises ValueError if it has updates of no client."""
        self._in_flight = {
            due: [
                PendingUpdate(client, dispatched, n, tuple(upload), loss)
                for client, dispatched, n, upload, loss in pending
            ]
            for due, pending in state.items()
        }
        for update in (update for pending in self._in_flight.values() for update in pending):
            known = isinstance(update.client, int) and 0 <= update.client < num_clients
            if not known or not all(isinstance(tensor, Tensor) for tensor in update.upload):
                raise ValueError("an update in flight has no client's number or no tensors")

    def _arrivals(
        self,
        upload: Upload,
        round: int,
        ids: Tensor,
        num_examples: Tensor,
        late: list[PendingUpdate],
        known: Collection[str],
        clients: Tensor | None = None,
    ) -> Updates[Upload]:
        """The late updates, and behind them those that are on time, whose numbers are given."""
        staleness = torch.zeros_like(ids)
        if late:
            self._home.arrive(f.client for f in late)
            ids = _behind((f.client for f in late), ids)
            num_examples = _behind((f.num_examples for f in late), num_examples)
            staleness = _behind((round - f.dispatched for f in late), staleness)
            clients = None if clients is None else _behind((1 for _ in late), clients)
        self.averaged = []
        return Updates(upload, ids, num_examples, staleness, self.aggregation, known, clients, self.averaged)

    def _record(self, dispatched: int, arrivals: Updates[Any], values: Counter[int], losses: list[float]) -> None:
        """Records how many updates came, and with them `values`, by the bytes of a value, and `losses`."""
        metrics, self.losses = self._trainer.metrics, self.losses + losses
        metrics.count_payload(upload=len(losses))
        for value_bytes, count in values.items():
            metrics.count_payload(upload=count, value_bytes=value_bytes)
        metrics.count_server_flops(2 * values.total())  # every method scales and adds the arrived updates
        metrics.record({"late/dispatched": dispatched, "late/arrived": len(arrivals)})
        metrics.record({"late/in_flight": sum(map(len, self._in_flight.values()))})
        if len(arrivals):
            metrics.record(staleness_metrics(arrivals.ages))


def _losses(late: Iterable[PendingUpdate]) -> Iterator[float]:
    return (f.loss for f in late if f.loss is not None)


def _behind(earlier: Iterable[int], later: Tensor) -> Tensor:
    return torch.cat([torch.tensor([*earlier], dtype=later.dtype, device=later.device), later])
