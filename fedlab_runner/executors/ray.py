"""Shares a cohort among the machines of a Ray cluster."""

import importlib.util
import logging
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Self

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import OfOne, Work
from fedlab_runner.executors._chunks import ChunkedExecutor, new_models
from fedlab_runner.executors._ray.driver import Done, Failed, Gone, Keep, Lost, Ready, Train, receive, send
from fedlab_runner.executors._ray.serialization import own_tensors, packed_client_data, pickled, shares_of
from fedlab_runner.utils.attempt import next_start
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.system import usable_cores

_log = logging.getLogger(__name__)
SHARES_PER_CORE = 4  # several, so that a slow machine takes fewer and a lost machine loses less
DRIVER_EXIT_SECONDS = 15.0  # for the driver to end, after which it is killed


@dataclass(frozen=True)
class Ray:
    """Shares the chunks of `inner` among all cores of a Ray cluster at `address` (null: a new cluster on this machine),
    one thread each. The result equals that of the inner executor, bit for bit if the machines have the same processor.

    It divides clients by their number of local steps. It sends data once and a model once a round. Other machines train
    the clients of a lost machine again. If the cluster's head is lost, the run writes a checkpoint and ends.
    """

    address: str | None
    inner: ChunkedExecutor

    def __post_init__(self) -> None:
        if self.address is not None and not re.fullmatch(r"auto|[^/\s]+:\d+", self.address):
            raise ValueError(f"address must be host:port, auto or null, got {self.address}")
        if not isinstance(self.inner, ChunkedExecutor):
            raise ValueError(f"inner must be loop or vectorized, got {type(self.inner).__name__.lower()}")

    def bind_run(self, folder: Path, rounds: int) -> Self:
        """Connects now, so that the user learns of an unreachable cluster before the run begins."""
        _ = self._session
        return self

    def max_parallel_clients(self, clients: int) -> int:
        return min(clients, usable_cores() * self.inner.max_parallel_clients(clients))

    def num_processes(self) -> int:
        return usable_cores()

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return self.inner.map_models(family, function, *rows, fill=fill)

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        if work.family.device.type != "cpu":
            raise UserError(f"executor=ray needs device=cpu, got {work.family.device}: take loop or vectorized")
        y = new_models(work)
        losses = y.new_zeros(len(work.ids))
        try:
            if len(work.ids):
                self._session.train(work, self.inner, y, losses)
        except BaseException:
            if (session := self.__dict__.pop("_session", None)) is not None:  # None: the session could not be opened
                session.close()  # the driver may be in the middle of a cohort
            raise
        return y, losses

    @cached_property
    def _session(self) -> "_Session":
        return _Session(self.address)


class _Session:
    """A connection to a cluster through a driver process."""

    def __init__(self, address: str | None) -> None:
        if not importlib.util.find_spec("ray"):
            raise UserError('executor=ray needs an extra: pip install "fedlab-runner[ray]"')
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # the output of the driver and of Ray
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "fedlab_runner.executors._ray.driver"]
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), address or "", str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # so that Ctrl-C reaches the run alone
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection = Connection(ours.detach())
        self.close = weakref.finalize(self, _end, self._connection, process, self._errors)
        self._numbers: Any = WeakIdKeyDictionary()  # the number of each object in Ray's object store
        self._sent = 0
        answer = self._receive()
        if not isinstance(answer, Ready):
            self.close()
            where = f"executor.address {address} cannot be reached" if address else "no Ray cluster can be started"
            reason = answer.reason if isinstance(answer, Gone) else "its driver has ended early"
            raise UserError(f"{where}: {reason}; is it up (ray status), and is this its address?")
        self._ready = answer
        _log.info("Ray cluster at %s with %d cores", answer.head, answer.cores)

    def train(self, work: Work, inner: ChunkedExecutor, y: Tensor, losses: Tensor) -> None:
        """Writes models and mean losses of the whole cohort into y [K, D] and losses [K]."""
        chunks = inner.chunks(work)
        shares = shares_of(work, chunks, min(len(chunks), SHARES_PER_CORE * self._ready.cores))
        client_data = self._kept(work.client_data, lambda: packed_client_data(work.client_data))
        numbers = [client_data, self._kept(work.family.module, lambda: own_tensors(work))]
        self._send(Train(pickled(work, inner), numbers, set(self._numbers.values()), shares))
        while not isinstance(answer := self._receive(), Ready):
            if isinstance(answer, Done):
                rows = shares[answer.share].rows
                y.numpy()[rows], losses.numpy()[rows] = answer.models, answer.losses
            elif isinstance(answer, Failed):
                raise pickle.loads(answer.error)
            elif isinstance(answer, Lost):
                self._lost(work, len(shares[answer.share].rows), answer)
            else:
                raise RunFailed(
                    f"the Ray cluster at {self._ready.head} is lost ({answer.reason}): start it again, or take another "
                    f"executor; {next_start()}"
                )
        self._ready = answer

    def _kept(self, lasting: object, packed: Callable[[], Any]) -> int:
        """The number of an object in the object store; a new object is put there."""
        if lasting not in self._numbers:
            self._sent += 1
            self._numbers[lasting] = self._sent
            self._send(Keep(self._sent, packed()))
        number: int = self._numbers[lasting]
        return number

    def _lost(self, work: Work, clients: int, lost: Lost) -> None:
        if lost.again:
            _log.warning("round %d: a worker is lost, its %d clients train elsewhere", work.round + 1, clients)
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


def _end(connection: Connection, process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
    """Ends the driver. It leaves the cluster when its connection closes."""
    connection.close()
    errors.close()
    try:
        process.wait(DRIVER_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
