"""The one mutable object of a run: the clients, the clock, and the updates on their way."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.arrivals import Arrivals, Upload, like, names
from fedlab_runner.clock import RoundClock
from fedlab_runner.executors.work import Correct, Executor, Loss, PerStep, Perturb, Work
from fedlab_runner.local import LocalTraining
from fedlab_runner.measure import client_losses
from fedlab_runner.plots import COUNT_PREFIX
from fedlab_runner.population import Population
from fedlab_runner.rng import Purpose, generators
from fedlab_runner.server import ServerData, server_batches
from fedlab_runner.tables import Rows, Tables
from fedlab_runner.task import Batch, Task

__all__ = ["Arrivals", "Cohort", "Federation", "Flight"]

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
        self.final_loss: Tensor | None = None  # [K] float64, after training, if clients report it: `report_losses`

    def __len__(self) -> int:
        return len(self.client_ids)

    def rows(self, place: str, length: int) -> Rows:
        """As `Federation.rows`."""
        return self._fed.rows(place, length)

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

    def select(self, rows: np.ndarray) -> "Cohort":
        """Some of the clients, by indices [k]."""
        return Cohort(self._fed, self.client_ids[rows], self.due[rows])

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
        y, self.last_loss = fed.executor.train(work)
        if len(self):
            total = self.num_examples.sum()
            fed.record_loss(float(self.last_loss @ self.num_examples.to(y.dtype) / total), int(total))
        if fed.losses_reported:
            self.final_loss = client_losses(self.task, fed.population, self.client_ids, y)
        return y


class Flight(NamedTuple):
    """One late update on its way."""

    client: int
    dispatched: int  # round
    num_examples: int
    upload: tuple[Tensor, ...]
    loss: float | None  # of its model on its own examples, if clients report it


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
        leash_data: ServerData | None = None,
        folder: Path | None = None,
        blocks: np.ndarray | None = None,
    ) -> None:
        self.server_data, self.leash_data = server_data, leash_data
        self.probe_data = probe_data  # examples for diagnostics: nothing is learned from them
        self.tables = Tables(folder, task.device)
        self.blocks = blocks  # [N, d0] bool, which feature blocks each client holds; None: everything
        self.task, self.population, self.executor, self.local, self.seed = task, population, executor, local, seed
        self.num_clients = population.num_clients
        self._clock = clock
        self.round, self.lr = 0, local.lr
        self._in_flight: dict[int, list[Flight]] = {}  # by the round of arrival
        self._metrics: dict[str, float] = {}
        self._timings: dict[str, float] = {}
        self.losses_reported = False
        self.arrived_losses: list[float] = []
        self._trained_on = 0  # examples behind this round's train/loss

    def begin(self, round: int, lr_factor: float) -> None:
        """Starts a round (counted from 0)."""
        self.round, self.lr = round, self.local.lr * lr_factor
        self._metrics, self._timings, self._trained_on = {}, {}, 0
        self.losses_reported, self.arrived_losses = False, []
        self.tables.begin(round)

    def report_losses(self) -> None:
        """In the rest of this round clients also send the loss of their trained model on all their examples, one value
        each; those of the arrivals are in `arrived_losses`.
        """
        self.losses_reported = True

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
        losses = [] if cohort.final_loss is None else cohort.final_loss[now].tolist()
        if not bool(now.all()):
            upload = like(upload, (rows[now] for rows in upload))
        if late := self._in_flight.pop(self.round, []):
            ids = self._behind([f.client for f in late], ids)
            num_examples = self._behind([f.num_examples for f in late], num_examples)
            staleness = self._behind([self.round - f.dispatched for f in late], staleness)
            old = (torch.stack(rows) for rows in zip(*(f.upload for f in late), strict=True))
            upload = like(upload, (torch.cat(pair) for pair in zip(old, upload, strict=True)))
            losses = [f.loss for f in late if f.loss is not None] + losses
        arrivals = Arrivals(upload, ids, num_examples, staleness)
        self.arrived_losses += losses
        values = sum(rows.numel() for name, rows in zip(names(upload), upload, strict=True) if name not in known)
        self._count("comm/upload_mb", values + len(losses))
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
            loss = None if cohort.final_loss is None else float(cohort.final_loss[k])
            flight = Flight(client, self.round, int(self.population.num_examples[client]), row, loss)
            self._in_flight.setdefault(int(cohort.due[k]), []).append(flight)

    @property
    def cohort_size(self) -> int:
        """How many clients are to report from each round when enough are idle."""
        return self._clock.cohort_size

    def server_batches(self, epochs: int, batch_size: int, max_steps: int | None = None, **how: Any) -> Iterator[Batch]:
        """Minibatches of the server's examples in this round; `how` as in `server.server_batches`."""
        return server_batches(self, epochs, batch_size, max_steps, **how)

    def rows(self, place: str, length: int) -> Rows:
        """Where an algorithm keeps rows [length] of the models' type for a State: device, host or disk."""
        return self.tables.rows(place, length, self.task.dtype)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the seconds that the body takes to this round's timings, as `time/<name>`."""
        began = time.monotonic()
        yield
        self._timings[f"time/{name}"] = self._timings.get(f"time/{name}", 0.0) + time.monotonic() - began

    def count_server_flops(self, flops: int) -> None:
        """Adds work of the server to this round's metrics."""
        self._metrics["cost/server_gflops"] = self._metrics.get("cost/server_gflops", 0.0) + flops / 1e9

    def record_server_cache(self, values: int) -> None:
        """Notes how many values the server keeps beside its model."""
        self._metrics["cost/server_cache_mb"] = values * FLOAT_BYTES / 1e6

    def report(self, **scalars: float) -> None:
        """Adds diagnostics to this round's metrics, as `algorithm/<name>`; nothing reads them back."""
        self._metrics |= {f"algorithm/{name}": value for name, value in scalars.items()}

    def record_loss(self, loss: float, examples: int) -> None:
        """Notes the mean loss of local training on so many examples; several in one round are averaged."""
        before, self._trained_on = self._trained_on, self._trained_on + examples
        mean = self._metrics.get("train/loss", 0.0)
        self._metrics["train/loss"] = (mean * before + loss * examples) / self._trained_on if before else loss

    def count_payload(self, *, upload: int = 0, download: int = 0) -> None:
        """Adds values that were sent, for methods whose clients send and receive different parts of a model."""
        self._count("comm/upload_mb", upload)
        self._count("comm/download_mb", download)

    def collect(self) -> dict[str, float]:
        """This round's metrics."""
        return self._metrics

    def timings(self) -> dict[str, float]:
        """What parts of this round took, in seconds."""
        return self._timings

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a round, by reference: the tensors in it are never written to."""
        return {
            "clock": self._clock.state_dict(),
            "in_flight": {due: list(flights) for due, flights in self._in_flight.items()},
            "tables": self.tables.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state."""
        self._clock.load_state_dict(state["clock"])
        self._in_flight = {
            due: [Flight(client, dispatched, n, tuple(upload), loss) for client, dispatched, n, upload, loss in flights]
            for due, flights in state["in_flight"].items()
        }
        self.tables.load_state_dict(state["tables"])

    def _behind(self, earlier: list[int], later: Tensor) -> Tensor:
        return torch.cat([torch.tensor(earlier, dtype=later.dtype, device=later.device), later])

    def _count(self, key: str, values: int) -> None:
        self._metrics[key] = self._metrics.get(key, 0.0) + values * FLOAT_BYTES / 1e6


def _staleness_metrics(staleness: Tensor) -> dict[str, float]:
    counts = enumerate(torch.bincount(staleness).tolist())
    return {
        "late/staleness_mean": float(staleness.double().mean()),
        "late/staleness_max": int(staleness.max()),
        **{f"{COUNT_PREFIX}{age}": count for age, count in counts if count},
    }
