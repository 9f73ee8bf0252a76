"""A run's end of the connection to a Ray cluster."""

import importlib.util
import logging
import pickle
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

import torch
from torch import Tensor

from fedlab_runner.core.joint_work import JointJob, JointPart, JointSize
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.parts import PartClients, PartsJob, Told
from fedlab_runner.core.work import Work
from fedlab_runner.executors._autotune.measure import FLOPS_A_SECOND
from fedlab_runner.executors._blocks import Block, Blocks
from fedlab_runner.executors._chunks import ChunkedExecutor, new_models
from fedlab_runner.executors._lasting import SentOnce
from fedlab_runner.executors._messages import Channel, Failed, started
from fedlab_runner.executors._ray.driver import Done, Gone, Lost, Ready, Request, Share
from fedlab_runner.executors._sending import as_tensor
from fedlab_runner.executors._shares import divided, packed_job, packed_work, shares_of
from fedlab_runner.utils.attempt import next_start
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.system import usable_cores

_log = logging.getLogger(__name__)
SHARES_PER_CORE = 4  # several, so that a slow machine takes fewer and a lost machine loses less
SHARE_SECONDS = 0.05  # that a share takes at least, if a core has several
GPU = "cuda"  # the device of a worker with a GPU: Ray shows it no other
GPU_CORES = 50  # that a GPU counts as, where joint work can be done on either
EXCHANGE_SECONDS = 1e-3  # that workers take to exchange the rows of a step
BYTES_A_SECOND = 5e8  # from the run to the workers, which two copies and a network of 10 Gbit/s leave
MAX_JOINT_TRIES = 2  # of joint work, after which the run does it itself: it may be the work that kills the workers
DRIVER_EXIT_SECONDS = 15.0  # for the driver to end, after which it is killed


class Session:
    """A connection to a cluster through a driver process."""

    def __init__(self, address: str | None, num_gpus: float) -> None:
        if not importlib.util.find_spec("ray"):
            raise UserError('executor=ray needs an extra: pip install "fedlab-runner[ray]"')
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # the output of the driver and of Ray
        self._num_gpus, self._blocks, self._numbers = num_gpus, Blocks(), SentOnce()
        words = "fedlab_runner.executors._ray.driver", address or "", str(self._num_gpus)
        self._connection, process = started(*words, errors=self._errors)
        self.close = weakref.finalize(self, _end, self._connection, process, self._errors)
        self._seconds = 0.0  # that the last cohort took
        self._shares = True  # whether workers may do joint work
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
        made, block = self._blocks.staged(work)
        y = made if made is not None and work.family.device.type == "cpu" else new_models(work)
        losses, lost = y.new_zeros(len(work.ids)), False
        content, lasting = packed_work(work, inner), (work.client_data, work.family)
        for answer in self._answers(content, lasting, shares, f"round {work.round + 1}", block):
            if isinstance(answer, Lost):
                lost = True
                continue
            rows = torch.from_numpy(shares[answer.share].rows)
            losses[rows] = as_tensor(answer.losses, y.device)
            if answer.models is not None:
                y[rows] = as_tensor(answer.models, y.device)
            elif made is not None and made is not y:
                y[rows] = made[rows].to(y.device)
        self._seconds = time.perf_counter() - began
        if lost:  # a worker that only seems lost may write into the block later
            y, self._blocks = y.clone(), Blocks()
        return y, losses

    def carry_out(self, job: PartsJob, inner: ChunkedExecutor, clients: Sequence[PartClients]) -> Iterator[Told]:
        """What the parts of a cohort send, in their order."""
        told, following = dict[int, Told](), 0
        lasting = job.client_data, job.family
        for answer in self._answers(packed_job(job, inner, lasting), lasting, clients, f"round {job.round + 1}"):
            if isinstance(answer, Done):
                told[answer.share] = answer.models
            while following in told:
                yield told.pop(following).on(job.family.device)
                following += 1

    def share(
        self, job: JointJob, inner: ChunkedExecutor, divide: Callable[[int], Sequence[JointPart]], size: JointSize
    ) -> list[tuple[Tensor, Sequence[Tensor]]] | None:
        """The places of each part of joint work, and its results, or None: see `JointWorkers`."""
        if not self._shares:
            return None
        reason = ""
        for _ in range(MAX_JOINT_TRIES):
            count = min(self._ready.present, size.parts)
            if not count or not self._gains(count, size, job.family):
                return None
            content, parts = packed_job(job, inner, job.lasting), [part.as_arrays() for part in divide(count)]
            places, told = [part.places for part in parts], dict[int, Any]()
            answers = self._answers(content, job.lasting, parts, job.what, in_step=size.steps > 0)
            del parts  # so that what has been sent is not here twice
            for answer in answers:
                if isinstance(answer, Done):
                    told[answer.share] = [as_tensor(found, job.family.device) for found in answer.models]
                else:
                    reason = answer.reason
            if len(told) == len(places):
                return [(its, told[i]) for i, its in enumerate(places)]
        self._shares = False
        _log.warning("%s: workers cannot work together (%s): this machine does it from now on", job.what, reason)
        return None

    def _gains(self, parts: int, size: JointSize, family: ModelFamily) -> bool:
        """Whether so many workers finish joint work sooner than this machine alone."""
        here = usable_cores() if family.device.type == "cpu" else GPU_CORES
        there = parts * (GPU_CORES * min(1.0, self._num_gpus) if self._num_gpus else 1)
        sending = size.steps * EXCHANGE_SECONDS + size.values * family.dtype.itemsize / BYTES_A_SECOND
        return size.operations / FLOPS_A_SECOND * (1 / here - 1 / there) > sending

    def _answers(
        self,
        job: bytes,
        lasting: Sequence[object],
        shares: Sequence[Share],
        what: str,
        block: Block | None = None,
        in_step: bool = False,
    ) -> Iterator[Done | Lost]:
        """What the driver says of each share, until all are done."""
        numbers, device = self._numbers.of(lasting, self._send), GPU if self._num_gpus else "cpu"
        self._send(Request(job, numbers, self._numbers.in_use, shares, device, block, in_step))
        sizes = [_size(share) for share in shares]
        del shares  # what has been sent
        while not isinstance(answer := self._receive(), Ready):
            if isinstance(answer, Failed):
                raise pickle.loads(answer.error)
            if isinstance(answer, Lost):
                self._lost(what, sizes[answer.share], answer)
            elif not isinstance(answer, Done):
                raise RunFailed(
                    f"the Ray cluster at {self._ready.head} is lost ({answer.reason}): start it again, or take another "
                    f"executor; {next_start()}"
                )
            yield answer
        self._ready = answer

    def _lost(self, what: str, share: str, lost: Lost) -> None:
        if lost.again:
            _log.warning("%s: a worker is lost, its %s goes to others", what, share)
            return
        raise RunFailed(
            f"executor=ray has lost the workers of the same {share} again and again ({lost.reason}): Ray's logs say "
            "more; where memory is short, start fewer workers on a machine (ray start --num-cpus)"
        )

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # the driver has ended, as the next receive reports
            self._connection.send(message)

    def _receive(self) -> Any:
        try:
            return self._connection.receive()
        except (EOFError, OSError):
            self._errors.seek(0)
            *_, last = self._errors.read().decode(errors="replace").strip().splitlines() or [""]
            return Gone(f"its driver has ended: {last}" if last else "its driver was ended by Ray or the system")


def _size(share: Share) -> str:
    return "part of the work" if isinstance(share, JointPart) else f"share of {len(share.ids)} clients"


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
            "folder for temporary files; RAY_TMPDIR names another one, such as one with a shorter name)"
        )
    reason = f"executor.address {address} cannot be reached: {gone.reason}"
    return f"{reason}; is it up (ray status), and is this its address?"


def _end(connection: Channel, process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
    """Ends the driver. It leaves the cluster when its connection closes."""
    connection.close()
    errors.close()
    try:
        process.wait(DRIVER_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
