"""The processes of a run that has a cohort on all GPUs of its machine: one for each GPU, this process included."""

import logging
import pickle
import subprocess
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.work import Work
from fedlab_runner.executors._blocks import Block, Blocks
from fedlab_runner.executors._chunks import ChunkedExecutor, new_models
from fedlab_runner.executors._gpus.worker import TrainShare
from fedlab_runner.executors._lasting import SentOnce
from fedlab_runner.executors._messages import Channel, Failed, Keep, started
from fedlab_runner.executors._sending import as_tensor
from fedlab_runner.executors._shares import ClientShare, divided, packed_work, trained

_log = logging.getLogger(__name__)
EXIT_SECONDS = 10.0  # after which a process that has been told to end is killed


def gpus() -> list[torch.device]:
    """The GPUs of this machine."""
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


class Worker(NamedTuple):
    """A process for another GPU."""

    device: torch.device
    connection: Channel
    process: "subprocess.Popen[bytes]"


class GpuTeam:
    """Trains a cohort on several GPUs, of which the run's own is one."""

    def __init__(self, others: Sequence[torch.device]) -> None:
        self._blocks, self._workers = Blocks(), list[Worker]()
        self.close = weakref.finalize(self, _end, self._workers)
        self._others = others
        self._numbers = SentOnce()

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
                answer = worker.connection.receive()
            except (EOFError, OSError):
                self._bury(worker, work)
                y[share.rows], losses[share.rows] = trained(whole, inner, share)
                continue
            if isinstance(answer, Failed):
                raise pickle.loads(answer.error)
            if answer.models is not None:
                y[share.rows] = as_tensor(answer.models, y.device)
            elif models is not None:
                y[share.rows] = models[share.rows].to(y.device)
            losses[share.rows] = as_tensor(answer.losses, y.device)
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
        self._numbers.forget()
        _log.info("%d processes train on GPUs of their own", 1 + len(self._workers))

    def _ask(
        self, inner: ChunkedExecutor, work: Work, asked: Sequence[tuple[Worker, ClientShare]], block: Block | None
    ) -> None:
        numbers, job = self._numbers.of((work.client_data, work.family), self._keep), packed_work(work, inner)
        for worker, share in asked:
            self._send(worker, TrainShare(job, numbers, self._numbers.in_use, share, block))

    def _keep(self, message: Keep) -> None:
        for worker in self._workers:
            self._send(worker, message)

    @staticmethod
    def _send(worker: Worker, message: NamedTuple) -> None:
        try:
            worker.connection.send(message)
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
