"""A cohort shared among worker processes of one thread each, which are forks of this process.

A fork has the clients' data, the models and the algorithm's closures without a copy. For plain local training from one
model, the next round needs only a few numbers: the workers stay for later rounds.
"""

import logging
import weakref
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.own_values import Own
from fedlab_runner.core.work import OfOne, Work, own_generator
from fedlab_runner.executors._chunks import ChunkedExecutor, SingleProcessExecutor
from fedlab_runner.executors._fork.buffers import SHARED, shared_zeros
from fedlab_runner.executors._fork.pool import ForkPool, PoolWork
from fedlab_runner.executors._fork.processes import one_thread
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.system import resident_bytes, usable_cores
from fedlab_runner.utils.validate import at_least

_log = logging.getLogger(__name__)
# Workers that stay keep all memory of the time of the fork, also what the run replaces later: no more than this.
MAX_KEPT_BYTES = 2e9
_lasting: "list[WorkerSession]" = []  # at most one: the session whose workers wait for a round
_watched: weakref.WeakSet[ClientData] = weakref.WeakSet()  # whose end dismisses the workers


@dataclass(frozen=True)
class Processes(SingleProcessExecutor):
    """Shares the chunks of `inner` among `workers` processes (null: as many as there are usable cores) of one thread
    each; the result is the inner executor's, bit for bit.

    A free process, this one included, takes the longest chunk that is left. If a worker dies, this process trains its
    unfinished chunks. Mutual learning (DFML) is shared too.
    """

    workers: int | None
    inner: ChunkedExecutor

    def __post_init__(self) -> None:
        at_least(1, workers=self.workers)
        if not isinstance(self.inner, ChunkedExecutor):
            raise ValueError(f"inner must be loop or vectorized, got {type(self.inner).__name__.lower()}")

    def max_parallel_clients(self, clients: int) -> int:
        return min(clients, self.num_processes() * self.inner.max_parallel_clients(clients))

    def num_processes(self) -> int:
        return self.workers or usable_cores()

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return self.inner.map_models(family, function, *rows, fill=fill)

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        if work.family.device.type != "cpu":
            raise UserError(f"executor=processes needs device=cpu, got {work.family.device}: take loop or vectorized")
        y = SHARED.take(len(work.ids), work.family.size, work.family.dtype)
        if not len(work.ids):
            return y, y.new_zeros(0)
        session = _session_for(self.inner, self.num_processes(), work)
        with own_generator(work), one_thread():
            session.carry_out(work, y)
        return y, session.losses[: len(work.ids)].clone()


class WorkerSession:
    """The shared memory and the workers for cohorts of up to K clients: the order, in numbers, and the results."""

    def __init__(self, inner: ChunkedExecutor, workers: int, work: Work) -> None:
        self._inner, self._workers, self._work = inner, workers, _terms(work)
        self._own = None if work.own_start is None else work.own_start.columns
        self._whose = weakref.ref(work.family), weakref.ref(work.client_data)
        self.lasts = _is_plain(work) and (resident_bytes() or MAX_KEPT_BYTES) < MAX_KEPT_BYTES
        clients, dtype = len(work.ids), work.family.dtype
        self.losses = shared_zeros((clients,), dtype)
        self._done = shared_zeros((clients,), torch.uint8).numpy()  # by chunk: there are at most K
        self._order = shared_zeros((2, clients + 1), torch.int64).numpy()  # count, ids; round, steps
        self._lr = shared_zeros((1,), torch.float64).numpy()
        self._start = shared_zeros((work.family.size if self.lasts else 0,), dtype)
        self._memory = SHARED.number
        self._pool: ForkPool | None = None

    def serves(self, inner: ChunkedExecutor, workers: int, work: Work) -> bool:
        """Whether the present workers can do this work."""
        return (
            _is_plain(work)
            and (self._inner, self._workers, self._work) == (inner, workers, _terms(work))
            and self._whose[0]() is work.family
            and self._whose[1]() is work.client_data
            and len(work.ids) <= len(self.losses)
            and self._memory == SHARED.number  # else the workers would write into the old buffer
            and (self._pool is None or self._pool.is_whole())
        )

    def carry_out(self, work: Work, y: Tensor) -> None:
        """Trains the cohort: writes models into y [K, D] and losses into `losses`."""
        clients = len(work.ids)
        if self.lasts and work.own_start is not None:  # a client's place in y is free until it has trained
            for place, values in zip(y, work.own_start.rows, strict=True):
                place[: len(values)] = values
        share = self._share(work, y)
        done = self._done[: share.chunks]
        done[:] = 0
        for number in self._inner.compiling_chunks(work):  # in this process: a fork cannot compile
            share.train(number)
            self.dismiss()  # the present workers lack the new graph
        if self.lasts:
            self._order[:, 0] = clients, work.round
            self._order[0, 1 : clients + 1], self._order[1, 1 : clients + 1] = work.ids, work.num_steps
            self._lr[0] = work.lr
            self._start.copy_(work.start)
        helpers = min(self._workers, len(self.losses) if self.lasts else int((done == 0).sum())) - 1
        self._pool = self._pool or ForkPool(
            max(0, helpers), partial(self._next, replace(work, own_start=None)) if self.lasts else lambda: share
        )
        self._pool.work(share, done)
        if not self.lasts:
            self.dismiss()
        if left := np.flatnonzero(done == 0).tolist():
            _log.warning("round %d: %d chunks are trained again", work.round + 1, len(left))
            for number in left:
                share.train(number)

    def is_orphan(self) -> bool:
        """Whether the clients' data that the session was made for is gone."""
        return self._whose[1]() is None

    def dismiss(self) -> None:
        """Ends the workers."""
        if self._pool is not None:
            self._pool.dismiss()
        self._pool = None

    def _next(self, like: Work) -> PoolWork:
        """In a worker: the work of the present order; all but the order is as in the first work, `like`."""
        (clients, round), rest = self._order[:, 0].tolist(), self._order[:, 1:]
        ids, steps = rest[:, :clients].copy()
        y = SHARED.again(clients, like.family.size, like.family.dtype)
        own = None if self._own is None else Own(self._own, y[:, : self._own.count].unbind())
        work = replace(
            like, ids=ids, num_steps=steps, round=round, lr=float(self._lr[0]), start=self._start, own_start=own
        )
        return self._share(work, y)

    def _share(self, work: Work, y: Tensor) -> PoolWork:
        chunks = self._inner.chunks(work)

        def train(number: int) -> None:
            self._inner.train_chunk(work, chunks[number], y, self.losses)
            self._done[number] = 1

        return PoolWork(train, len(chunks))


def dismiss() -> None:
    """Ends the workers that wait for another round."""
    while _lasting:
        _lasting.pop().dismiss()


def _session_for(inner: ChunkedExecutor, workers: int, work: Work) -> WorkerSession:
    """The session whose workers wait, if it can do this work; else a new session."""
    if _lasting and _lasting[0].serves(inner, workers, work):
        return _lasting[0]
    session = WorkerSession(inner, workers, work)
    if session.lasts:
        dismiss()
        _lasting.append(session)
        if work.client_data not in _watched:
            _watched.add(work.client_data)
            weakref.finalize(work.client_data, _after_run)
    return session


def _after_run() -> None:
    if _lasting and _lasting[0].is_orphan():
        dismiss()


def _is_plain(work: Work) -> bool:
    """Whether a few numbers describe the work, beside what clients have at home: the algorithm adds no function, and
    all clients receive one model.
    """
    own = (work.loss, work.perturb, work.correct, work.per_step)
    return all(each is None for each in own) and not work.per_client and work.start.dim() == 1


def _terms(work: Work) -> tuple[object, ...]:
    """What must stay the same for waiting workers, beside model family and clients' data."""
    return work.local, work.seed, work.own_start and work.own_start.columns
