"""Shares a cohort among the machines of a Ray cluster."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from fedlab_runner.core.executor import OfOne, Parallel
from fedlab_runner.core.joint_work import JointJob, JointPart, JointSize
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.parts import PartClients, PartsJob, Told
from fedlab_runner.core.work import Work
from fedlab_runner.executors._chunks import ChunkedExecutor, new_models
from fedlab_runner.executors._ray.session import Session
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.system import usable_cores
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class Ray:
    """Shares the chunks of `inner` among all cores of a Ray cluster at `address` (null: a new cluster on this machine),
    one thread each. If the machines have the same processor, the result equals, bit for bit, that of the inner executor
    with `threads=1`.

    With `num_gpus` each worker has that many GPUs (0.5: two workers share a GPU), and the workers share the cohort; the
    run itself may be on a CPU.

    It divides clients by their number of local steps. It sends data once and a model once a round. With
    `aggregator.sum_every` a worker sends sums of so many clients' updates in the place of their models. The workers
    share mutual learning (DFML), the answers of teachers (FedDF, FedBE) and evaluation where they are faster than this
    machine.
    Other machines train the clients of a lost machine again. If the cluster's head is lost, the run writes a checkpoint
    and ends.
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

    def compiles(self, family: ModelFamily, kind: str, steps: int, operations: float, round: int) -> bool:
        return self.inner.compiles(family, kind, steps, operations, round)

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

    def share(
        self, job: JointJob, divide: Callable[[int], Sequence[JointPart]], size: JointSize
    ) -> list[tuple[Tensor, Sequence[Tensor]]] | None:
        """Joint work (`core.joint_work.JointWorkers`)."""
        self.check(job.family)
        with self._closed_on_error():
            return self._session.share(job, self.inner, divide, size)

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
    def _session(self) -> Session:
        return Session(self.address, self.num_gpus)
