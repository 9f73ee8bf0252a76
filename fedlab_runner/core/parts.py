"""A cohort in parts, of which only sums of updates are kept: what a part sends, and parts that train elsewhere."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.client_state import ClientStateStore
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.global_rng import seed_globals
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.round_metrics import RoundMetrics, SomeMetrics, bytes_of_a_value
from fedlab_runner.core.running_sums import sums_of
from fedlab_runner.core.trainer import LocalTrainer
from fedlab_runner.core.update_guard import Guard
from fedlab_runner.core.updates import PendingUpdate, like, names

Later = tuple[int, PendingUpdate]  # the round in which an update arrives, and the update


class Part(NamedTuple):
    """What a part of a cohort sends."""

    sums: tuple[Tensor, ...]  # an upload of sums: of the updates that are on time, each [2, ...] (`sums_of`)
    counts: Tensor  # [2] int64, their examples and their number
    late: list[Later]  # the others
    values: Counter[int]  # how many those on time have sent, by the bytes of a value
    losses: list[float]  # that those on time report


def send(cohort: Cohort, upload: Any, guard: Guard, home: ClientHomes) -> tuple[Tensor, list[Later]]:
    """The mask [K] of the updates that arrive now, and the later ones."""
    answered = guard.answered(cohort.client_ids, upload)
    home.revert(cohort.client_ids[~answered].tolist())
    late = []
    for k in (answered & (cohort.due > cohort.round)).nonzero()[0].tolist():
        row = tuple(rows[k].clone() for rows in upload)  # a view would keep the whole cohort in memory
        loss = None if cohort.final_loss is None else float(cohort.final_loss[k])
        update = PendingUpdate(int(cohort.client_ids[k]), cohort.round, int(cohort.num_examples[k]), row, loss)
        late.append((int(cohort.due[k]), update))
    return torch.from_numpy(answered & (cohort.due == cohort.round)).to(cohort.family.device), late


def reported(cohort: Cohort, now: Tensor) -> list[float]:
    """The losses that the clients of a mask [K] report."""
    found: list[float] = [] if cohort.final_loss is None else cohort.final_loss[now].tolist()
    return found


def values_in(upload: Any, known: Collection[str], home: ClientHomes) -> Counter[int]:
    """How many values clients have sent in an upload's tensors [A, ...], by the bytes of a value; the server has the
    fields that are `known`.
    """
    found = Counter[int]()
    for name, rows in zip(names(upload), upload, strict=True):
        if name not in known and len(rows):
            found[bytes_of_a_value(rows)] += len(rows) * home.sent(rows[0])
    return found


def part_of(cohort: Cohort, upload: Any, known: Collection[str], guard: Guard, home: ClientHomes) -> Part:
    """What the clients of a part send who have made this upload."""
    now, late = send(cohort, upload, guard, home)
    upload = upload if bool(now.all()) else like(upload, (rows[now] for rows in upload))
    sums, counts = sums_of(upload, cohort.num_examples[now])
    return Part(like(upload, sums), counts, late, values_in(upload, known, home), reported(cohort, now))


class PartClients(NamedTuple):
    """The clients of a part."""

    ids: np.ndarray  # [k]
    due: np.ndarray  # [k], the rounds in which their updates arrive


class Told(NamedTuple):
    """A part that was carried out elsewhere, and its metrics."""

    part: Part
    metrics: SomeMetrics

    def on(self, device: torch.device) -> "Told":
        """This part with its tensors on a device."""
        sums, counts, late, values, losses = self.part
        late = [(due, f._replace(upload=tuple(t.to(device) for t in f.upload))) for due, f in late]
        return self._replace(part=Part(tuple(t.to(device) for t in sums), counts.to(device), late, values, losses))


class PartsJob(NamedTuple):
    """What a process needs, besides a part's clients, to carry it out for clients that keep nothing of their own."""

    update: Callable[[Cohort], Any]  # makes the upload
    known: Collection[str]
    family: ModelFamily
    client_data: ClientData
    local: LocalTraining
    lr: float
    seed: int
    round: int
    losses_reported: bool

    def carry_out(self, executor: Executor, metrics: RoundMetrics, clients: PartClients) -> Told:
        """What a part's clients send. Raises Diverged where an update is not finite."""
        seed_globals(self.family.device, self.seed, self.round + 1, 1 + int(clients.ids[0]) if len(clients.ids) else 0)
        metrics.begin()
        store, guard = ClientStateStore(None, self.family.device), Guard("stop")
        trainer = LocalTrainer(self.client_data, executor, guard, metrics, store, self.seed)
        trainer.begin(self.round)
        trainer.losses_reported = self.losses_reported
        cohort = Cohort(trainer, self.family, self.local, *clients, self.round, self.lr)
        nothing_at_home = ClientHomes(None, (self.family,), store, self.seed)
        part = part_of(cohort, self.update(cohort), self.known, guard, nothing_at_home)
        return Told(part._replace(sums=tuple(part.sums)), metrics.told())


@runtime_checkable
class Elsewhere(Protocol):
    """An executor whose processes carry out parts and send back no more than sums."""

    def carry_out(self, job: PartsJob, clients: Sequence[PartClients]) -> Iterator[Told]:
        """The parts in their order."""
        ...
