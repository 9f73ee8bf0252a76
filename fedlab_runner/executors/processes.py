"""Shares a cohort among worker processes of one thread each, which are forks of this process.

A fork has the clients' data and the models without a copy. The workers stay for later rounds, in which they receive the
algorithm's functions and data (`core.additions`). Work with a closure cannot be sent; new workers are forked for it.
"""

import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.executor import OfOne, Parallel
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work
from fedlab_runner.executors._chunks import ChunkedExecutor, SingleProcessExecutor
from fedlab_runner.executors._fork.buffers import SHARED, Arena, ArenaFull, shared_zeros
from fedlab_runner.executors._fork.orders import Acquaintances, Known, Unsendable, packed, unpacked
from fedlab_runner.executors._fork.pool import ForkPool, PoolWork
from fedlab_runner.executors._gpus.team import GpuTeam, gpus
from fedlab_runner.executors.compiled import in_layers
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.system import memory_bytes, resident_bytes, usable_cores
from fedlab_runner.utils.torch_settings import one_thread
from fedlab_runner.utils.validate import at_least

_log = logging.getLogger(__name__)
# Workers that stay keep all memory of the time of the fork, also the parts that the run replaces later. The bound is
# this or a share of the memory that is free, if that is more.
KEPT_BYTES, KEPT_SHARE = 2e9, 0.25
MAX_SENT_BYTES = 2**27  # of a round's tensors, which are copied; forking takes less time than copying more
GPUS: Literal["gpus"] = "gpus"  # the value of `workers` that means a process for each GPU
_waiting: "list[WaitingWorkers]" = []  # at most one
MAX_ORDER_BYTES = 2**20  # of the pickled rest of a round's work
_met: "weakref.WeakSet[Known]" = weakref.WeakSet()  # objects that earlier work has used
_watched: weakref.WeakSet[ClientData] = weakref.WeakSet()  # data whose deletion may dismiss the workers


@dataclass(frozen=True)
class Processes(SingleProcessExecutor):
    """Shares the chunks of `inner` among `workers` processes (null: as many as there are usable cores) of one thread
    each. The result equals, bit for bit, that of the inner executor with `threads=1`.

    With `workers=gpus` and `device=cuda` all GPUs of the machine share the cohort, with a process for each; the server
    is on the first GPU.

    A free process (also this one) takes the longest chunk that is left. If a worker dies, this process trains its
    unfinished chunks. The processes share mutual learning (DFML) too. Where compiled steps have many graphs, with batch
    norm, dropout or a function that each round makes, this process trains all clients: take `inner.compile=false`.
    """

    workers: int | Literal["gpus"] | None
    inner: ChunkedExecutor

    def __post_init__(self) -> None:
        if self.workers != GPUS:
            at_least(1, workers=self.workers)
        if not isinstance(self.inner, ChunkedExecutor):
            raise ValueError(f"inner must be loop or vectorized, got {type(self.inner).__name__.lower()}")

    def check(self, family: ModelFamily) -> None:
        self.inner.check(family)
        device = _numbered(family.device)
        if self.workers == GPUS and device not in gpus():
            raise UserError(f"executor.workers=gpus needs device=cuda, got {device}")
        if self.workers != GPUS and device.type != "cpu":
            raise UserError(
                f"executor=processes needs device=cpu, got {family.device}: take executor.workers=gpus, or loop or "
                "vectorized"
            )

    def parallel(self, clients: int) -> Parallel:
        if self.workers == GPUS:  # of those on one GPU
            return self.inner.parallel(-(-clients // max(1, len(gpus()))))
        return self.inner.parallel(clients).times(self.num_processes(), clients)

    def num_processes(self) -> int:
        return 1 if self.workers == GPUS else self.workers or usable_cores()

    def compiles(self, family: ModelFamily, kind: str, steps: int, operations: float, round: int) -> bool:
        return self.inner.compiles(family, kind, steps, operations, round)

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return SHARED.empty(rows, columns, dtype, device)

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return self.inner.map_models(family, function, *rows, fill=fill)

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        self.check(work.family)
        if self.workers == GPUS:
            return self._on_gpus(work)
        if self.inner.compile and not in_layers(work):  # a fork cannot compile, and such steps have many graphs
            with one_thread():
                return self.inner.train(work)
        y = SHARED.take(len(work.ids), work.family.size, work.family.dtype)
        if not len(work.ids):
            return y, y.new_zeros(0)
        with work.kept_globals(), one_thread():
            losses = self._train_waiting(work, y)
            return y, self._train_once(work, y) if losses is None else losses

    def _on_gpus(self, work: Work) -> tuple[Tensor, Tensor]:
        others = gpus()
        others.remove(_numbered(work.family.device))
        if not len(work.ids):
            return self.inner.train(work)
        if "_gpu_team" not in self.__dict__:
            self.__dict__["_gpu_team"] = GpuTeam(others)
        team: GpuTeam = self.__dict__["_gpu_team"]
        try:
            return team.train(self.inner, work)
        except BaseException:
            del self.__dict__["_gpu_team"]
            team.close()  # a process may be in the middle of its share
            raise

    def _train_waiting(self, work: Work, y: Tensor) -> Tensor | None:
        """The losses [K], with models in y [K, D], if waiting workers can do the work; else None."""
        workers = min(self.num_processes(), len(work.ids))
        if not (_waiting and _waiting[0].can_help(workers)) and not _replaced(workers, work):
            return None
        try:
            return _waiting[0].train(self.inner, work, y)
        except ArenaFull:
            return None
        except Unsendable as error:
            unknown = error.unknown
        if unknown is None:  # a closure
            return None
        if unknown not in _met:  # maybe no later work uses this object
            _met.add(unknown)
            return None
        return self._train_waiting(work, y) if _replaced(workers, work, unknown) else None

    def _train_once(self, work: Work, y: Tensor) -> Tensor:
        """The losses [K], with models in y [K, D], from workers that are forked for this work."""
        losses, done = shared_zeros((len(work.ids),), y.dtype), shared_zeros((len(work.ids),), torch.uint8).numpy()
        share = _share(self.inner, work, y, losses, done)
        for number in self.inner.compiling_chunks(work):  # in this process: a fork cannot compile
            share.train(number)
        helpers = min(self.num_processes(), int((done[: share.chunks] == 0).sum())) - 1
        pool = ForkPool(max(0, helpers), lambda: share)
        pool.work(share, done[: share.chunks])
        pool.dismiss()
        _finish(share, done, work)
        return losses


def _numbered(device: torch.device) -> torch.device:
    """A GPU with its number, which "cuda" does not name."""
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


class WaitingWorkers:
    """Workers for the rounds of a run: the memory through which they get orders, and the objects known at their fork.

    The memory holds an order's length and pickled form, then the losses, the marks of finished chunks, and the tensors
    of the work.
    """

    def __init__(self, workers: int, known: Iterable[Known]) -> None:
        self._workers, self.known, self._arena = workers, Acquaintances(known), Arena(MAX_SENT_BYTES)
        self._order = shared_zeros((MAX_ORDER_BYTES,), torch.uint8)
        self._blocks = SHARED.numbers
        self._pool: ForkPool | None = None

    def can_help(self, workers: int) -> bool:
        """Whether there are `workers` workers that know the memory of the models."""
        whole = self._pool is None or self._pool.is_whole()
        return workers <= self._workers and SHARED.last in self._blocks and whole

    def train(self, inner: ChunkedExecutor, work: Work, y: Tensor) -> Tensor:
        """The losses [K], with models in y [K, D]. Raises Unsendable, and ArenaFull if the memory is too small."""
        self._arena.clear()
        (at_losses, losses), (at_done, marks) = (
            self._arena.room((len(work.ids),), dtype) for dtype in (y.dtype, torch.uint8)
        )
        more = inner, SHARED.last, at_losses, at_done
        order = packed(work, more, self.known, self._arena, SHARED, self._blocks)
        if len(order) > MAX_ORDER_BYTES - 8:
            raise ArenaFull
        losses.zero_()
        done = marks.zero_().numpy()
        share = _share(inner, work, y, losses, done)
        for number in inner.compiling_chunks(work):  # in this process: a fork cannot compile
            share.train(number)
            self.dismiss()  # the present workers lack the new graph
        self._order[:8].view(torch.int64)[0] = len(order)
        self._order[8 : 8 + len(order)] = torch.frombuffer(bytearray(order), dtype=torch.uint8)
        self._pool = self._pool or ForkPool(self._workers - 1, self._next)
        self._pool.work(share, done[: share.chunks])
        _finish(share, done, work)
        return losses.clone()

    def dismiss(self) -> None:
        """Ends the workers."""
        if self._pool is not None:
            self._pool.dismiss()
        self._pool = None

    def _next(self) -> PoolWork:
        """In a worker: the work of the present order."""
        length = int(self._order[:8].view(torch.int64)[0])
        content = self._order[8 : 8 + length].numpy().tobytes()
        work, (inner, block, at_losses, at_done) = unpacked(content, self.known, self._arena, SHARED)
        y = SHARED.again(block, (len(work.ids), work.family.size), work.family.dtype)
        losses, done = (
            self._arena.at(place, (len(work.ids),), dtype)
            for place, dtype in ((at_losses, y.dtype), (at_done, torch.uint8))
        )
        return _share(inner, work, y, losses, done.numpy())


def dismiss() -> None:
    """Ends the workers that wait for another round."""
    while _waiting:
        _waiting.pop().dismiss()


def _replaced(workers: int, work: Work, *more: Known) -> bool:
    """Replaces the waiting workers by new ones that know more objects, if the memory allows it."""
    if (resident_bytes() or 0) >= max(KEPT_BYTES, KEPT_SHARE * (memory_bytes() or 0)):
        return False
    data = work.client_data.part_of or work.client_data
    before, new = _waiting[0].known.alive() if _waiting else [], (work.family, data, *more)
    dismiss()
    _waiting.append(WaitingWorkers(workers, dict.fromkeys((*before, *new))))
    _met.update(new)
    if data not in _watched:
        _watched.add(data)
        weakref.finalize(data, _after_run)
    return True


def _after_run() -> None:
    """Ends the workers when all clients' data that they know is gone."""
    if _waiting and not any(isinstance(each, ClientData) for each in _waiting[0].known.alive()):
        dismiss()


def _share(inner: ChunkedExecutor, work: Work, y: Tensor, losses: Tensor, done: np.ndarray) -> PoolWork:
    chunks = inner.chunks(work)

    def train(number: int) -> None:
        inner.train_chunk(work, chunks[number], y, losses)
        done[number] = 1

    return PoolWork(train, len(chunks))


def _finish(share: PoolWork, done: np.ndarray, work: Work) -> None:
    """Trains the chunks that are not done."""
    if left := np.flatnonzero(done[: share.chunks] == 0).tolist():
        _log.warning("round %d: %d chunks are trained again", work.round + 1, len(left))
        for number in left:
            share.train(number)
