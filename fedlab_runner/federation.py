"""The one mutable object of a run: the clients, the clock, and the updates on their way."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.clock import RoundClock
from fedlab_runner.executors.need import check_memory
from fedlab_runner.executors.work import Correct, Executor, Loss, PerStep, Perturb, Work
from fedlab_runner.local import LocalTraining
from fedlab_runner.plots import COUNT_PREFIX
from fedlab_runner.population import Population
from fedlab_runner.rng import Purpose, generators
from fedlab_runner.server import ServerData, server_batches
from fedlab_runner.task import Batch, Task

Upload = TypeVar("Upload", bound=tuple[Tensor, ...])
FLOAT_BYTES = 4  # what one value costs on the wire, whatever precision the simulation uses


class Cohort:
    """The clients that start now, programmed as if they were one client."""

    def __init__(self, fed: "Federation", ids: np.ndarray, due: np.ndarray) -> None:
        self._fed, self.task, self.client_ids, self.due = fed, fed.task, ids, due
        self._num_steps = fed.population.num_steps(ids, fed.local, fed.task.has_batch_norm)
        device = fed.task.device
        self.ids = torch.from_numpy(ids).to(device)  # [K]
        self.num_examples = torch.from_numpy(fed.population.num_examples[ids]).to(device)  # [K]
        self.num_steps = torch.from_numpy(self._num_steps).to(device)  # [K]
        self.round, self.local, self.lr = fed.round, fed.local, fed.lr
        self.last_loss: Tensor | None = (
            None  # [K], after training: mean minibatch loss over each client's last local epoch
        )

    def __len__(self) -> int:
        return len(self.client_ids)

    @property
    def label_counts(self) -> Tensor:
        """How many examples of each class each client has [K, C] int64."""
        return self._fed.population.label_counts(self.client_ids, self.task.num_classes)

    @property
    def steps_per_epoch(self) -> np.ndarray:
        """Local steps of each client in one epoch [K]."""
        return self._fed.population.steps_per_epoch(self.client_ids, self.local, self.task.has_batch_norm)

    def streams(self, rows: np.ndarray, step: int) -> Iterator[np.random.Generator]:
        """Random streams for the algorithm's use: of some rows of the cohort, in turn, at one of their local steps."""
        return generators(self._fed.seed, Purpose.ALGORITHM, self.round, self.client_ids[rows], step)

    def train(
        self,
        start: Tensor,
        *,
        loss: Loss | None = None,
        perturb: Perturb | None = None,
        correct: Correct | None = None,
        per_client: tuple[Tensor, ...] = (),
        per_step: PerStep | None = None,
    ) -> Tensor:
        """The clients' models after local training [K, D], from `start` [D] or [K, D].

        `loss(model, batch, *own)` replaces the task's loss; each step's gradient [P] is taken where
        `perturb(gradient, *own)` moves the parameters, on the same minibatch, and changed by
        `correct(gradient, *own)`. All are written for one client: what they close over is shared, what is passed in
        `per_client` (tensors [K, ...]) is split by client, and `per_step(rows, step)` adds to it what some rows of the
        cohort [k] have at one local step (tensors [k, ...]).
        """
        fed = self._fed
        work = Work(
            task=self.task,
            population=fed.population,
            ids=self.client_ids,
            num_steps=self._num_steps,
            local=fed.local,
            lr=self.lr,
            seed=fed.seed,
            round=fed.round,
            start=start,
            loss=loss,
            perturb=perturb,
            correct=correct,
            per_client=per_client,
            per_step=per_step,
        )
        check_memory(work)
        y, self.last_loss = fed.executor.train(work)
        if len(self):
            fed.record_loss(float(self.last_loss @ self.num_examples.to(y.dtype) / self.num_examples.sum()))
        return y


class Arrivals(Generic[Upload]):
    """The updates that reach the server in this round, oldest dispatch first, then in the order of sampling."""

    def __init__(self, upload: Upload, ids: Tensor, num_examples: Tensor, staleness: Tensor) -> None:
        self.upload = upload  # each tensor [A, ...]
        self.ids = ids  # [A]
        self.num_examples = num_examples  # [A]
        self.staleness = staleness  # [A], server steps between dispatch and arrival

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Tensor) -> "Arrivals[Upload]":
        """Some of the arrivals: a mask or indices [A]."""
        upload = _like(self.upload, (t[rows] for t in self.upload))
        return Arrivals(upload, self.ids[rows], self.num_examples[rows], self.staleness[rows])

    def mean(self, rows: Tensor, *, uniform: bool = False) -> Tensor:
        """The mean of rows [A, ...] weighted by number of examples, or uniform; zero when nothing has arrived."""
        if not len(self):
            return rows.new_zeros(rows.shape[1:])
        weights = torch.ones_like(self.num_examples) if uniform else self.num_examples
        mean: Tensor = torch.tensordot(weights.to(rows.dtype) / weights.sum(), rows, 1)
        return mean


class Flight(NamedTuple):
    """One late update on its way."""

    client: int
    dispatched: int  # round
    num_examples: int
    upload: tuple[Tensor, ...]


class Federation:
    """The simulated system that algorithms act on; all that a round changes in it is in its `state_dict`."""

    def __init__(
        self,
        *,
        task: Task,
        population: Population,
        clock: RoundClock,
        executor: Executor,
        local: LocalTraining,
        seed: int,
        server_data: ServerData | None = None,
        probe_data: ServerData | None = None,
    ) -> None:
        self.server_data = server_data
        self.probe_data = probe_data  # examples for diagnostics: nothing is learned from them
        self.task, self.population, self.executor, self.local, self.seed = task, population, executor, local, seed
        self.num_clients = population.num_clients
        self._clock = clock
        self.round, self.lr = 0, local.lr
        self._in_flight: dict[int, list[Flight]] = {}  # by the round of arrival
        self._metrics: dict[str, float] = {}

    def begin(self, round: int, lr_factor: float) -> None:
        """Starts a round (counted from 0)."""
        self.round, self.lr = round, self.local.lr * lr_factor
        self._metrics = {}

    def dispatch(self, broadcast: Sequence[Tensor]) -> Cohort:
        """The clients that receive `broadcast` and train now."""
        starts = self._clock.start(self.round)
        self._count("comm/download_mb", starts.asked * sum(t.numel() for t in broadcast))
        return Cohort(self, starts.ids, starts.due)

    def exchange(self, cohort: Cohort, upload: Upload, known: Collection[str] = ()) -> Arrivals[Upload]:
        """Sends the cohort's updates (tensors [K, ...]) on their way and receives those due in this round.

        Fields of the upload that are `known` to the server already, such as the model that a client had received, are
        not sent.
        """
        self._send_late(cohort, upload)
        now = torch.from_numpy(cohort.due == self.round).to(self.task.device)
        ids, num_examples, staleness = cohort.ids[now], cohort.num_examples[now], torch.zeros_like(cohort.ids[now])
        if not bool(now.all()):
            upload = _like(upload, (rows[now] for rows in upload))
        if late := self._in_flight.pop(self.round, []):
            ids = self._behind([f.client for f in late], ids)
            num_examples = self._behind([f.num_examples for f in late], num_examples)
            staleness = self._behind([self.round - f.dispatched for f in late], staleness)
            old = (torch.stack(rows) for rows in zip(*(f.upload for f in late), strict=True))
            upload = _like(upload, (torch.cat(pair) for pair in zip(old, upload, strict=True)))
        arrivals = Arrivals(upload, ids, num_examples, staleness)
        values = sum(rows.numel() for name, rows in zip(_names(upload), upload, strict=True) if name not in known)
        self._count("comm/upload_mb", values)
        self.count_server_flops(2 * values)  # every method scales and adds what arrives
        self._metrics |= {
            "late/dispatched": len(cohort),
            "late/arrived": len(arrivals),
            "late/in_flight": sum(map(len, self._in_flight.values())),
        }
        if len(arrivals):
            self._metrics |= _staleness_metrics(staleness)
        return arrivals

    def _send_late(self, cohort: Cohort, upload: Upload) -> None:
        for k in np.flatnonzero(cohort.due > self.round).tolist():
            client = int(cohort.client_ids[k])
            row = tuple(rows[k].clone() for rows in upload)  # a view would keep the whole cohort in memory
            flight = Flight(client, self.round, int(self.population.num_examples[client]), row)
            self._in_flight.setdefault(int(cohort.due[k]), []).append(flight)

    @property
    def cohort_size(self) -> int:
        """How many clients are to report from each round when enough are idle."""
        return self._clock.cohort_size

    def server_batches(self, epochs: int, batch_size: int, max_steps: int | None = None, **how: Any) -> Iterator[Batch]:
        """Minibatches of the server's examples in this round; `how` as in `server.server_batches`."""
        return server_batches(self, epochs, batch_size, max_steps, **how)

    def count_server_flops(self, flops: int) -> None:
        """Adds work of the server to this round's metrics."""
        self._metrics["cost/server_gflops"] = self._metrics.get("cost/server_gflops", 0.0) + flops / 1e9

    def record_server_cache(self, values: int) -> None:
        """Notes how many values the server keeps beside its model."""
        self._metrics["cost/server_cache_mb"] = values * FLOAT_BYTES / 1e6

    def report(self, **scalars: float) -> None:
        """Adds diagnostics to this round's metrics, as `algorithm/<name>`; nothing reads them back."""
        self._metrics |= {f"algorithm/{name}": value for name, value in scalars.items()}

    def record_loss(self, loss: float) -> None:
        """Notes the mean loss of local training in this round's metrics."""
        self._metrics["train/loss"] = loss

    def collect(self) -> dict[str, float]:
        """This round's metrics."""
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a round, by reference: the tensors in it are never written to."""
        return {
            "clock": self._clock.state_dict(),
            "in_flight": {due: list(flights) for due, flights in self._in_flight.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state."""
        self._clock.load_state_dict(state["clock"])
        self._in_flight = {
            due: [Flight(client, dispatched, n, tuple(upload)) for client, dispatched, n, upload in flights]
            for due, flights in state["in_flight"].items()
        }

    def _behind(self, earlier: list[int], later: Tensor) -> Tensor:
        return torch.cat([torch.tensor(earlier, dtype=later.dtype, device=later.device), later])

    def _count(self, key: str, values: int) -> None:
        self._metrics[key] = self._metrics.get(key, 0.0) + values * FLOAT_BYTES / 1e6


def _like(upload: Upload, tensors: Iterable[Tensor]) -> Upload:
    """An upload of the same NamedTuple class."""
    return cast(Upload, cast(Any, type(upload))(*tensors))


def _names(upload: tuple[Tensor, ...]) -> tuple[str, ...]:
    return cast(tuple[str, ...], cast(Any, upload)._fields)


def _staleness_metrics(staleness: Tensor) -> dict[str, float]:
    counts = enumerate(torch.bincount(staleness).tolist())
    return {
        "late/staleness_mean": float(staleness.double().mean()),
        "late/staleness_max": int(staleness.max()),
        **{f"{COUNT_PREFIX}{age}": count for age, count in counts if count},
    }
