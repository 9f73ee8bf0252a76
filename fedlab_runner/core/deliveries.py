"""The updates of a cohort that arrive at once, those on their way, and what arrives in a round of both."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedlab_runner.core.aggregation import Aggregation
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.running_sums import RunningSums
from fedlab_runner.core.trainer import LocalTrainer
from fedlab_runner.core.updates import PendingUpdate, Updates, Upload, gathered, like, names, staleness_metrics


class Deliveries:
    """Sends updates on their way, and hands over those that are due."""

    def __init__(self, trainer: LocalTrainer, home: ClientHomes, aggregation: Aggregation | None) -> None:
        self._trainer, self._home, self.aggregation = trainer, home, aggregation
        self._in_flight: dict[int, list[PendingUpdate]] = {}  # by the round of arrival
        self.losses: list[float] = []  # of the updates that have arrived in this round, where clients report them

    def of_cohort(self, cohort: Cohort, upload: Upload, known: Collection[str]) -> Updates[Upload]:
        """See `Federation.collect_updates`."""
        now, late = self._send(cohort, upload), self._in_flight.pop(cohort.round, [])
        if late or not bool(now.all()):
            index = now.nonzero().flatten()
            upload = like(upload, (gathered([f.upload[i] for f in late], rows, index) for i, rows in enumerate(upload)))
        arrivals = self._arrivals(upload, cohort.round, cohort.ids[now], cohort.num_examples[now], late, known)
        self._record(len(cohort), arrivals, self._values(upload, known), [*_losses(late), *_reported(cohort, now)])
        return arrivals

    def of_parts(
        self, cohort: Cohort, size: int, update: Callable[[Cohort], Upload], known: Collection[str]
    ) -> Updates[Upload]:
        """See `Federation.collect_sums`; a part has `size` clients."""
        sums, losses, values = RunningSums[Upload](), list[float](), 0
        for part in cohort.parts(size):
            upload = update(part)
            now = self._send(part, upload)
            upload = upload if bool(now.all()) else like(upload, (rows[now] for rows in upload))
            values, losses = values + self._values(upload, known), losses + _reported(part, now)
            sums.add(upload, part.num_examples[now])
            del upload  # before the next part trains
        (of_all, num_examples, clients), late = sums.means(), self._in_flight.pop(cohort.round, [])
        values += sum(self._values(like(of_all, f.upload), known) for f in late)
        every = torch.arange(len(clients), device=clients.device)
        rows = (gathered([f.upload[i] for f in late], rows, every) for i, rows in enumerate(of_all))
        ids = torch.full_like(clients, -1)
        arrivals = self._arrivals(like(of_all, rows), cohort.round, ids, num_examples, late, known, clients)
        self._record(len(cohort), arrivals, values, [*_losses(late), *losses])
        return arrivals

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

    def _send(self, cohort: Cohort, upload: Upload) -> Tensor:
        """Sends late updates on their way; returns the mask [K] of those that arrive now."""
        answered = self._trainer.guard.answered(cohort.client_ids, upload)
        self._home.revert(cohort.client_ids[~answered].tolist())
        for k in (answered & (cohort.due > cohort.round)).nonzero()[0].tolist():
            row = tuple(rows[k].clone() for rows in upload)  # a view would keep the whole cohort in memory
            loss = None if cohort.final_loss is None else float(cohort.final_loss[k])
            update = PendingUpdate(int(cohort.client_ids[k]), cohort.round, int(cohort.num_examples[k]), row, loss)
            self._in_flight.setdefault(int(cohort.due[k]), []).append(update)
        return torch.from_numpy(answered & (cohort.due == cohort.round)).to(cohort.family.device)

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
        return Updates(upload, ids, num_examples, staleness, self.aggregation, known, clients)

    def _record(self, dispatched: int, arrivals: Updates[Any], values: int, losses: list[float]) -> None:
        """Records how many updates came, and with them `values` values and `losses`."""
        metrics, self.losses = self._trainer.metrics, self.losses + losses
        metrics.count_payload(upload=values + len(losses))
        metrics.count_server_flops(2 * values)  # every method scales and adds the arrived updates
        metrics.record({"late/dispatched": dispatched, "late/arrived": len(arrivals)})
        metrics.record({"late/in_flight": sum(map(len, self._in_flight.values()))})
        if len(arrivals):
            metrics.record(staleness_metrics(arrivals.ages))

    def _values(self, upload: Upload, known: Collection[str]) -> int:
        """How many values the clients have sent in an upload's tensors."""
        return sum(self._home.sent(rows) for name, rows in zip(names(upload), upload, strict=True) if name not in known)


def _losses(late: Iterable[PendingUpdate]) -> Iterator[float]:
    return (f.loss for f in late if f.loss is not None)


def _reported(cohort: Cohort, now: Tensor) -> list[float]:
    """The losses that the clients of a mask [K] report."""
    found: list[float] = [] if cohort.final_loss is None else cohort.final_loss[now].tolist()
    return found


def _behind(earlier: Iterable[int], later: Tensor) -> Tensor:
    return torch.cat([torch.tensor([*earlier], dtype=later.dtype, device=later.device), later])
