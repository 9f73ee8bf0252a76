"""The base of executors that divide a cohort into independent chunks and train chunk after chunk."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.executor import OfOne, Parallel
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work
from fedlab_runner.executors._fork.buffers import PRIVATE


class Chunk(NamedTuple):
    """Clients that train together: rows of the cohort [k], and whether batch norm keeps its stored statistics."""

    rows: np.ndarray
    frozen_norm: bool


class SingleProcessExecutor:
    """An executor that keeps no notes of a run and uses one process."""

    def bind_run(self, folder: Path, rounds: int) -> Self:
        return self

    def check(self, family: ModelFamily) -> None:
        """See `Executor`; this base refuses nothing."""

    def num_processes(self) -> int:
        return 1

    def compiles(self, family: ModelFamily, kind: str, steps: int, operations: float, round: int) -> bool:
        return False

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=device)


class ChunkedExecutor(SingleProcessExecutor, ABC):
    """An executor that divides a cohort into chunks, whose clients train together."""

    compile: bool  # whether to compile the local step with torch.compile; a field of every subclass

    @abstractmethod
    def parallel(self, clients: int) -> Parallel:
        """See `Executor`."""

    def compiles(self, family: ModelFamily, kind: str, steps: int, operations: float, round: int) -> bool:
        return self.compile

    @abstractmethod
    def chunks(self, work: Work) -> list[Chunk]:
        """The chunks of the cohort, longest work first. A chunk's result depends on the chunk's clients alone."""

    @abstractmethod
    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        """See `Executor`."""

    @abstractmethod
    def compiling_chunks(self, work: Work) -> list[int]:
        """The numbers of the chunks whose training compiles the graphs that all chunks need, of work whose models move
        layer by layer (`compiled.in_layers`).
        """

    @abstractmethod
    def train_chunk(self, work: Work, chunk: Chunk, y: Tensor, losses: Tensor) -> None:
        """Trains a chunk, and writes its clients' models and mean losses into their rows of y [K, D] and losses [K]."""

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        self.check(work.family)
        y = new_models(work)
        losses = y.new_zeros(len(work.ids))
        with work.kept_globals():
            for chunk in self.chunks(work):
                self.train_chunk(work, chunk, y, losses)
        return y, losses


def new_models(work: Work) -> Tensor:
    """An uninitialised tensor for the models of a cohort [K, D]."""
    family, count = work.family, len(work.ids)
    if family.device.type == "cpu":
        return PRIVATE.take(count, family.size, family.dtype)
    return torch.empty(count, family.size, device=family.device, dtype=family.dtype)


def one_by_one(function: OfOne, *rows: Tensor) -> list[Tensor]:
    """The results of `function` on each row of tensors [n, ...], one call a row, stacked [n, ...]."""
    results = [function(*row) for row in zip(*(t.unbind() for t in rows), strict=True)]
    return [torch.stack(column) for column in zip(*results, strict=True)]


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has done all launched work; returns at once on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
