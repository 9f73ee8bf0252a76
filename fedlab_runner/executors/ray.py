"""Shares a cohort among the machines of a Ray cluster."""

import importlib.util
import logging
import pickle
import re
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Self

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fedlab_runner.core.executor import OfOne, Parallel
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.parts import PartClients, PartsJob, Told
from fedlab_runner.core.work import Work
from fedlab_runner.executors._blocks import Block, Blocks
from fedlab_runner.executors._chunks import ChunkedExecutor, new_models
from fedlab_runner.executors._messages import Failed, Keep, receive, send, started
from fedlab_runner.executors._ray.driver import Done, Gone, Lost, Ready, Train
from fedlab_runner.executors._shares import (
    ClientShare,
    divided,
    packed_client_data,
    packed_family,
    packed_job,
    packed_work,
    shares_of,
)
from fedlab_runner.utils.attempt import next_start
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.system import usable_cores
from fedlab_runner.utils.validate import at_least

_log = logging.getLogger(__name__)
SHARES_PER_CORE = 4  # several, so that a slow machine takes fewer and a lost machine loses less
SHARE_SECONDS = 0.05  # that a share takes at least, if a core has several
GPU = "cuda"  # the device of a worker with a GPU: Ray shows it no other
DRIVER_EXIT_SECONDS = 15.0  # for the driver to end, after which it is killed


@dataclass(frozen=True)
class Ray:
    """Shares the chunks of `inner` among all cores of a Ray cluster at `address` (null: a new cluster on this machine),
    one thread each. The result equals that of the inner executor, bit for bit if the machines have the same processor.

    With `num_gpus` each worker has that many GPUs (0.5: two workers share a GPU), and the workers share the cohort; the
    run itself may be on a CPU.

    It divides clients by their number of local steps. It sends data once and a model once a round. With
    `aggregator.sum_every` a worker sends sums of so many clients' updates in the place of their models. Other machines
    train the clients of a lost machine again. If the cluster's head is lost, the run writes a checkpoint and ends.
    """

    address: str | None
    num_gpus: float
    inner: ChunkedExecutor

    def __post_init__(self) -> None:
        if self.address is not None and not re.fullmatch(r"auto|[^/\s]+:\d+", self.address):
            raise ValueError(f"address must be host:port, auto or null, got {self.address}")
        at_least(0, num_gpus=self.num_gpus)
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise ValueError(f"num_gpus must be a whole number where it is above 1, got {self.num_gpus}")
        if not isinstance(self.inner, ChunkedExecutor):
            raise ValueError(f"inner must be loop or vectorized, got {type(self.inner).__name__.lower()}")

    def bind_run(self, folder: Path, rounds: int) -> Self:
        """Connects now, so that the user learns of an unreachable cluster before the run begins."""
        _ = self._session
        return self

    def check(self, family: ModelFamily) -> None:
        self.inner.check(family)
        if family.device.type != "cpu" and not self.num_gpus:
            raise UserError(f"executor=ray needs device=cpu or executor.num_gpus, got {family.device}")

    def parallel(self, clients: int) -> Parallel:
        return self.inner.parallel(clients).times(usable_cores(), clients)

    def num_processes(self) -> int:
        return usable_cores()

    def compiles(self, family: ModelFamily, kind: str, operations: float, round: int) -> bool:
        return self.inner.compiles(family, kind, operations, round)

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.inner.empty(rows, columns, dtype, device)

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return self.inner.map_models(family, function, *rows, fill=fill)

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        self.check(work.family)
        if not len(work.ids):
            none = new_models(work)
            return none, none.new_zeros(0)
        with self._closed_on_error():
            return self._session.train(work, self.inner)

    def carry_out(self, job: PartsJob, clients: Sequence[PartClients]) -> Iterator[Told]:
        """The parts of a cohort, of which workers send sums (`core.parts.Elsewhere`)."""
        self.check(job.family)
        with self._closed_on_error():
            yield from self._session.carry_out(job, self.inner, clients)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Closes the session where a cohort ends early: the driver may be in the middle of it."""
        try:
            yield
        except BaseException:
            if (session := self.__dict__.pop("_session", None)) is not None:  # None: the session could not be opened
                session.close()
            raise

    @cached_property
    def _session(self) -> "_Session":
        return _Session(self)


class _Session:
    """A connection to a cluster through a driver process."""

    def __init__(self, settings: Ray) -> None:
        if not importlib.util.find_spec("ray"):
            raise UserError('executor=ray needs an extra: pip install "fedlab-runner[ray]"')
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # the output of the driver and of Ray
        address, self._num_gpus, self._blocks = settings.address, settings.num_gpus, Blocks()
        words = "fedlab_runner.executors._ray.driver", address or "", str(self._num_gpus)
        self._connection, process = started(*words, errors=self._errors)
        self.close = weakref.finalize(self, _end, self._connection, process, self._errors)
        self._numbers: Any = WeakIdKeyDictionary()  # of the objects in Ray's object store
        self._seconds = 0.0  # that the last cohort took
        self._sent = 0
        answer = self._receive()
        if not isinstance(answer, Ready):
            self.close()
            raise UserError(_unreachable(address, answer))
        if not answer.workers:
            self.close()
            raise UserError(f"executor.num_gpus is {self._num_gpus:g}, but no node of the Ray cluster has so many GPUs")
        self._ready = answer
        _log.info("Ray cluster at %s with room for %d workers", answer.head, answer.workers)

    def train(self, work: Work, inner: ChunkedExecutor) -> tuple[Tensor, Tensor]:
        """The models [K, D] and mean losses [K] of the whole cohort. Workers of this machine write the models where
        they stay, if the run is on a CPU.
        """
        began, chunks, workers = time.perf_counter(), inner.chunks(work), max(1, self._ready.workers)
        if self._num_gpus:
            shares = divided(inner, work, workers)
        else:
            most = max(1, min(SHARES_PER_CORE, round(self._seconds / SHARE_SECONDS)))
            shares = shares_of(work, chunks, min(len(chunks), most * workers))
        numbers = self._lasting(work)
        made, block = self._blocks.staged(work)
        y = made if made is not None and work.family.device.type == "cpu" else new_models(work)
        losses, lost = y.new_zeros(len(work.ids)), False
        for answer in self._answers(packed_work(work, inner), numbers, shares, work.round, block):
            if isinstance(answer, Lost):
                lost = True
                continue
            rows = torch.from_numpy(shares[answer.share].rows)
            losses[rows] = torch.tensor(answer.losses).to(y.device)
            if answer.models is not None:
                y[rows] = torch.tensor(answer.models).to(y.device)
            elif made is not None and made is not y:
                y[rows] = made[rows].to(y.device)
        self._seconds = time.perf_counter() - began
        if lost:  # a worker that only seems lost may write into the block later
            y, self._blocks = y.clone(), Blocks()
        return y, losses

    def carry_out(self, job: PartsJob, inner: ChunkedExecutor, clients: Sequence[PartClients]) -> Iterator[Told]:
        """What the parts of a cohort send, in their order."""
        told, following = dict[int, Told](), 0
        for answer in self._answers(packed_job(job, inner), self._lasting(job), clients, job.round):
            if isinstance(answer, Done):
                told[answer.share] = answer.models
            while following in told:
                yield told.pop(following).on(job.family.device)
                following += 1

    def _answers(
        self,
        job: bytes,
        numbers: list[int],
        shares: Sequence[ClientShare | PartClients],
        round: int,
        block: Block | None = None,
    ) -> Iterator[Done | Lost]:
        """What the driver says of each share, until all are done."""
        in_use = {number for number, _ in self._numbers.values()}
        self._send(Train(job, numbers, in_use, shares, GPU if self._num_gpus else "cpu", block))
        while not isinstance(answer := self._receive(), Ready):
            if isinstance(answer, Failed):
                raise pickle.loads(answer.error)
            if isinstance(answer, Lost):
                self._lost(round, len(shares[answer.share].ids), answer)
            elif not isinstance(answer, Done):
                raise RunFailed(
                    f"the Ray cluster at {self._ready.head} is lost ({answer.reason}): start it again, or take another "
                    f"executor; {next_start()}"
                )
            yield answer
        self._ready = answer

    def _lasting(self, work: Work | PartsJob) -> list[int]:
        """The numbers of the clients' data and of the model family, which workers keep from round to round."""
        return [
            self._kept(work.client_data, None, lambda: packed_client_data(work.client_data)),
            self._kept(work.family, work.family.active_part, lambda: packed_family(work.family)),
        ]

    def _kept(self, lasting: object, state: Any, packed: Callable[[], Any]) -> int:
        """The number of an object in the object store; what is new, or has changed, is put there."""
        number, before = self._numbers.get(lasting, (0, None))
        if not number or before != state:
            self._sent += 1
            self._numbers[lasting] = number, _ = self._sent, state
            self._send(Keep(number, packed()))
        return int(number)

    def _lost(self, round: int, clients: int, lost: Lost) -> None:
        if lost.again:
            _log.warning("round %d: a worker is lost, its %d clients train elsewhere", round + 1, clients)
            return
        raise RunFailed(
            f"executor=ray has lost the workers of the same {clients} clients again and again ({lost.reason}): Ray's "
            "logs say more; where memory is short, start fewer workers on a machine (ray start --num-cpus)"
        )

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # the driver has ended, as the next receive reports
            send(self._connection, message)

    def _receive(self) -> Any:
        try:
            return receive(self._connection)
        except (EOFError, OSError):
            self._errors.seek(0)
            *_, last = self._errors.read().decode(errors="replace").strip().splitlines() or [""]
            return Gone(f"its driver has ended: {last}" if last else "its driver was ended by Ray or the system")


def _unreachable(address: str | None, answer: Any) -> str:
    """What to do where there is no cluster."""
    gone = answer if isinstance(answer, Gone) else Gone("its driver has ended early")
    if gone.wants_token:
        return (
            f"the Ray cluster at executor.address {address} wants its token: set RAY_AUTH_MODE=token, and copy "
            "~/.ray/auth_token from the cluster's first machine if this one has none (docs/cluster.md)"
        )
    if address is None:
        return (
            f"no Ray cluster can be started: {gone.reason}; Ray's logs may say more (ray/session_latest/logs in the "
            "folder for temporary files)"
        )
    reason = f"executor.address {address} cannot be reached: {gone.reason}"
    return f"{reason}; is it up (ray status), and is this its address?"


def _end(connection: Connection, process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
    """Ends the driver. It leaves the cluster when its connection closes."""
    connection.close()
    errors.close()
    try:
        process.wait(DRIVER_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
