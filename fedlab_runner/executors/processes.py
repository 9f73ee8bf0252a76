"""A cohort shared among worker processes of one thread each: forked for a round, gone after it.

A fork takes the whole round along, without a copy: the population, the models that clients start from, and the
closures that an algorithm gives to `train`. What a pool of lasting workers would have to be sent, they have.
"""

import logging
import mmap
import os
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.errors import UserError
from fedlab_runner.executors.buffers import SHARED
from fedlab_runner.executors.pieces import InPieces, Unchanging, own_generator
from fedlab_runner.executors.work import OfOne, Work
from fedlab_runner.system import cpu_seconds, die_with_parent, usable_cores
from fedlab_runner.task import Task

_log = logging.getLogger(__name__)
_NUMBER = struct.Struct("<i")
MOST_TICKETS = 1024  # they must fit into a pipe at once, which holds 4 KiB at the least
LOOK_SECONDS = 5.0  # how often workers are looked at while the parent waits for them
STUCK_SECONDS = 60.0  # a worker that has used no CPU time for so long is given up
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_ending: list[int] = []  # processes that have reported and only have to be collected


@dataclass(frozen=True)
class Processes(Unchanging):
    """Shares what `inner` does among `workers` processes (null: as many as there are usable cores) of one thread each;
    the result is the inner executor's, bit for bit.

    Whoever is free takes the longest piece that is left; this process works too, which keeps its caches warm for the
    workers to come. What a worker that dies has not finished is trained here.
    """

    workers: int | None
    inner: InPieces

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be >= 1 or null, got {self.workers}")
        if not isinstance(self.inner, InPieces):
            raise ValueError(f"inner must be loop or vectorized, got {type(self.inner).__name__.lower()}")

    def at_once(self, clients: int) -> int:
        return min(clients, (self.workers or usable_cores()) * self.inner.at_once(clients))

    def each(self, task: Task, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return self.inner.each(task, function, *rows, fill=fill)

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        if work.task.device.type != "cpu":
            raise UserError(f"executor=processes needs device=cpu, got {work.task.device}: take loop or vectorized")
        y = SHARED.take(len(work.ids), work.task.size, work.task.dtype)
        losses = shared_zeros((len(work.ids),), work.task.dtype)
        pieces = self.inner.pieces(work)
        done = shared_zeros((len(pieces),), torch.uint8).numpy()

        def train(number: int) -> None:
            self.inner.train_piece(work, pieces[number], y, losses)
            done[number] = 1

        with own_generator(work), _one_thread():
            if pieces and not self.inner.is_ready(work):
                train(0)  # compiled here, once, and not in every worker of every round
            tickets = [part for part in _tickets(len(pieces)) if not done[part].all()]
            _share(train, tickets, min(self.workers or usable_cores(), len(tickets)) - 1)
            if left := np.flatnonzero(done == 0).tolist():
                _log.warning("round %d: %d pieces of work are trained again", work.round + 1, len(left))
                for number in left:
                    train(number)
        return y, losses


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor that forked processes share, in memory without a name: nothing is left behind, no quota of /dev/shm."""
    size = torch.Size(shape).numel()
    if not size:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype).view(shape)


def _tickets(pieces: int) -> list[np.ndarray]:
    """The pieces, dealt out so that each part is a fair share of long and short ones."""
    count = min(pieces, MOST_TICKETS)
    return [np.arange(first, pieces, count) for first in range(count)]


def _share(train: Callable[[int], None], tickets: list[np.ndarray], helpers: int) -> None:
    """Trains the tickets' pieces in this process and in `helpers` forked ones; what a helper did not finish is left."""
    while _ending:  # of the round before: their memory went while this process was at other things
        os.waitpid(_ending.pop(), 0)
    queue, fill = os.pipe()
    reports, report = os.pipe()  # a helper's id when it has finished; the end when all have ended
    os.write(fill, b"".join(map(_NUMBER.pack, range(len(tickets)))))
    os.close(fill)

    def work() -> None:
        while ticket := os.read(queue, _NUMBER.size):
            for number in tickets[_NUMBER.unpack(ticket)[0]].tolist():
                train(number)

    def help() -> None:
        work()
        os.write(report, _NUMBER.pack(os.getpid()))

    helping: list[int] = []
    try:
        for _ in range(helpers):
            _fork(help, helping)
        os.close(report)
        report = -1
        work()
        _wait(reports, helping)
    finally:
        for pid in helping:
            os.kill(pid, signal.SIGKILL)
        for pid in helping:
            os.waitpid(pid, 0)
        for descriptor in (queue, reports, report):
            if descriptor >= 0:
                os.close(descriptor)


def _fork(work: Callable[[], None], helping: list[int]) -> None:
    """Starts a helper and notes its id: no signal comes between the two."""
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        with warnings.catch_warnings():
            # Python warns of every fork beside other threads (the tracker's, the console's): one that held a lock
            # which a helper needs would leave it waiting. Helpers only compute, and a stuck one is given up.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            helping.append(pid)
            return
        code = 1
        try:
            die_with_parent(parent)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            work()
            code = 0
        finally:
            os._exit(code)  # the parent's files, tracker and locks are none of its business
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(reports: int, helping: list[int]) -> None:
    """Until every helper has finished or died; one that does nothing any more is killed."""
    seen = {pid: (0.0, time.monotonic()) for pid in helping}
    while seen:
        if select.select([reports], [], [], LOOK_SECONDS)[0]:
            if not (report := os.read(reports, _NUMBER.size)):
                break
            pid = _NUMBER.unpack(report)[0]
            seen.pop(pid)
            helping.remove(pid)
            _ending.append(pid)
        for pid, (used, since) in list(seen.items()):
            now = cpu_seconds(pid)
            if now is None or now > used:
                seen[pid] = (now or 0.0, time.monotonic())
            elif time.monotonic() - since > STUCK_SECONDS:
                _log.warning("worker process %d has stood still for %.0f s and is given up", pid, STUCK_SECONDS)
                os.kill(pid, signal.SIGKILL)
                seen[pid] = (used, time.monotonic())
    for pid in list(helping):
        _, status = os.waitpid(pid, 0)
        helping.remove(pid)
        _log.warning("worker process %d ended early (%s)", pid, _cause(status))


def _cause(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
