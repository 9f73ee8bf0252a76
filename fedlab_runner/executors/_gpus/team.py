"""The processes of a run that has a cohort on all GPUs of its machine: one for each GPU, this process included."""

import logging
import pickle
import subprocess
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fedlab_runner.core.work import Work
from fedlab_runner.executors._blocks import Block, Blocks
from fedlab_runner.executors._chunks import ChunkedExecutor, new_models
from fedlab_runner.executors._gpus.worker import TrainShare
from fedlab_runner.executors._messages import Failed, Keep, receive, send, started
from fedlab_runner.executors._shares import (
    ClientShare,
    divided,
    packed_client_data,
    packed_family,
    packed_work,
    trained,
)

_log = logging.getLogger(__name__)
EXIT_SECONDS = 10.0  # after which a process that has been told to end is killed


def gpus() -> list[torch.device]:
    """The GPUs of this machine."""
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


class Worker(NamedTuple):
    """A process for another GPU."""

    device: torch.device
    connection: Connection
    process: "subprocess.Popen[bytes]"


class GpuTeam:
    """Trains a cohort on several GPUs, of which the run's own is one."""

    def __init__(self, others: Sequence[torch.device]) -> None:
        self._blocks, self._workers = Blocks(), list[Worker]()
        self.close = weakref.finalize(self, _end, self._workers)
        self._others = others
        self._numbers: Any = WeakIdKeyDictionary()  # of what the workers have
        self._sent = 0

    def train(self, inner: ChunkedExecutor, work: Work) -> tuple[Tensor, Tensor]:
        """The models [K, D] and losses [K] of the cohort."""
        if len(self._workers) < len(self._others):  # at the first cohort, or one has died
            self._start()
        y = new_models(work)
        losses = y.new_zeros(len(work.ids))
        mine, *theirs = divided(inner, work, 1 + len(self._workers))
        whole = work.select(np.empty(0, np.int64))
        asked = list(zip(self._workers, theirs, strict=False))
        models, block = self._blocks.staged(work) if asked else (None, None)
        if asked:
            self._ask(inner, work, asked, block)
        y[mine.rows], losses[mine.rows] = trained(whole, inner, mine)
        for worker, share in asked:
            try:
                answer = receive(worker.connection)
            except (EOFError, OSError):
                self._bury(worker, work)
                y[share.rows], losses[share.rows] = trained(whole, inner, share)
                continue
            if isinstance(answer, Failed):
                raise pickle.loads(answer.error)
            made = models[share.rows] if models is not None and answer.models is None else torch.tensor(answer.models)
            y[share.rows] = made.to(y.device)
            losses[share.rows] = torch.from_numpy(answer.losses).to(y.device)
        return y, losses

    def _start(self) -> None:
        there = [worker.device for worker in self._workers]
        missing = list(self._others)
        for device in there:
            missing.remove(device)
        name = "fedlab_runner.executors._gpus.worker"
        for device in missing:
            made = started(name, str(device), errors=None)
            self._workers.append(Worker(device, *made))
        self._numbers.clear()  # a new process has nothing
        _log.info("%d processes train on GPUs of their own", 1 + len(self._workers))

    def _ask(
        self, inner: ChunkedExecutor, work: Work, asked: Sequence[tuple[Worker, ClientShare]], block: Block | None
    ) -> None:
        client_data = self._kept(work.client_data, None, lambda: packed_client_data(work.client_data))
        family = self._kept(work.family, work.family.active_part, lambda: packed_family(work.family))
        job, in_use = packed_work(work, inner), {number for number, _ in self._numbers.values()}
        for worker, share in asked:
            self._send(worker, TrainShare(job, client_data, family, in_use, share, block))

    def _kept(self, lasting: object, state: Any, packed: Callable[[], Any]) -> int:
        """The number of what the workers have; what is new, or has changed, is sent."""
        number, before = self._numbers.get(lasting, (0, None))
        if not number or before != state:
            self._sent += 1
            self._numbers[lasting] = number, _ = self._sent, state
            message = Keep(number, packed())
            for worker in self._workers:
                self._send(worker, message)
        return int(number)

    @staticmethod
    def _send(worker: Worker, message: NamedTuple) -> None:
        try:
            send(worker.connection, message)
        except OSError:
            _log.debug("the process for %s has ended", worker.device)  # the answer that does not come tells of it

    def _bury(self, worker: Worker, work: Work) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        code = worker.process.wait()
        _log.warning(
            "round %d: the process for %s has ended (exit code %d): its clients are trained again here",
            work.round + 1,
            worker.device,
            code,
        )


def _end(workers: list[Worker]) -> None:
    """Ends the processes, which end when their connections are closed."""
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        try:
            worker.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
    workers.clear()
