"""A cohort's work in chunks that do not depend on each other, carried out one after another."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import OfOne, Work, own_generator
from fedlab_runner.executors._fork.buffers import PRIVATE


class Chunk(NamedTuple):
    """Clients that train together: rows of the cohort [k], and whether batch norm keeps its stored statistics."""

    rows: np.ndarray
    frozen_norm: bool


class SingleProcessExecutor:
    """An executor that is the same in every run, and one process."""

    def bind_run(self, folder: Path, rounds: int) -> Self:
        return self

    def num_processes(self) -> int:
        return 1


class ChunkedExecutor(SingleProcessExecutor, ABC):
    """An executor that says which clients train together and how; `compile` compiles what a step computes."""

    compile: bool  # a field of each of them

    @abstractmethod
    def max_parallel_clients(self, clients: int) -> int:
        """As in `Executor`."""

    @abstractmethod
    def chunks(self, work: Work) -> list[Chunk]:
        """All clients of the cohort, longest work first. A chunk's result depends on its own clients alone."""

    @abstractmethod
    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        """As in `Executor`."""

    @abstractmethod
    def compiling_chunks(self, work: Work) -> list[int]:
        """Those of the chunks, by number, whose training compiles what they and the others need."""

    @abstractmethod
    def train_chunk(self, work: Work, chunk: Chunk, y: Tensor, losses: Tensor) -> None:
        """Writes the models and mean losses of the chunk's clients into their rows of y [K, D] and losses [K]."""

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        y = new_models(work)
        losses = y.new_zeros(len(work.ids))
        with own_generator(work):
            for chunk in self.chunks(work):
                self.train_chunk(work, chunk, y, losses)
        return y, losses


def new_models(work: Work) -> Tensor:
    """Room for the models of a cohort [K, D]."""
    family, count = work.family, len(work.ids)
    if family.device.type == "cpu":
        return PRIVATE.take(count, family.size, family.dtype)
    return torch.empty(count, family.size, device=family.device, dtype=family.dtype)


def wait_for(device: torch.device) -> None:
    """A GPU goes on with its work when a call has returned: this returns when it has done it all."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
