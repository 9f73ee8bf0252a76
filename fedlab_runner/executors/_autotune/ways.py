"""The ways in which `executor=auto` can train a cohort, and which of them fit a kind of work."""

from typing import NamedTuple

import torch

from fedlab_runner.core.work import Executor, Work
from fedlab_runner.executors._chunks import ChunkedExecutor
from fedlab_runner.executors.compiled import has_compiler, in_layers
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import DEFAULT_CHUNK_SIZE, Vectorized

MAX_WHOLE_VALUES = 2**25  # of a cohort's models, where all clients train in one call on a CPU


class Way(NamedTuple):
    """A way to train a cohort. Two ways give other last bits; the number of worker processes does not."""

    chunk_size: int | None  # clients that train side by side, 1: one after another, None: all
    processes: bool = False  # chunks shared among processes of one thread each; else in one, with the run's threads
    compile: bool = False
    recorded: bool = False  # as CUDA graphs

    @property
    def words(self) -> str:
        """What chooses this way on the command line."""
        inner = "executor.inner" if self.processes else "executor"
        if self.processes:
            words = ["processes", *(["+executor@executor.inner=vectorized"] if self.chunk_size != 1 else [])]
        else:
            stacked = self.chunk_size != 1 or self.recorded
            words = ["cuda_graph" if self.recorded else "vectorized" if stacked else "loop"]
            words += [f"executor.chunk_size={self.chunk_size or 'null'}"] if stacked else []
        return " ".join([*words, *([f"{inner}.compile=true"] if self.compile else [])])

    def runs_here(self) -> bool:
        """Whether this machine has what the way needs."""
        return (not self.compile or has_compiler()) and (not self.recorded or torch.cuda.is_available())

    def executor(self, workers: int | None) -> Executor:
        """The executor, which shares the chunks among so many processes where it shares them."""
        if self.recorded:
            return CudaGraph(self.chunk_size, self.compile)
        one: ChunkedExecutor = Loop(self.compile) if self.chunk_size == 1 else Vectorized(self.chunk_size, self.compile)
        return Processes(workers, one) if self.processes else one


REFERENCE = Way(1)  # the way with which the others must agree
SIDE_BY_SIDE = Way(DEFAULT_CHUNK_SIZE)
_SHARED = (Way(1, processes=True), Way(DEFAULT_CHUNK_SIZE, processes=True))
_ON_CPU = (REFERENCE, *_SHARED, Way(None))
_ON_GPU = (REFERENCE, SIDE_BY_SIDE, Way(None), Way(1, recorded=True), Way(None, recorded=True))
_ON_GPU_COMPILED = (SIDE_BY_SIDE, Way(None), Way(None, recorded=True))
WAYS = {
    way.words: way
    for way in (
        *_ON_CPU,
        *(way._replace(compile=True) for way in _ON_CPU),
        *_ON_GPU,
        *(way._replace(compile=True) for way in _ON_GPU_COMPILED),
    )
}


def fitting(work: Work, *, compile: bool) -> list[Way]:
    """The ways that fit the work, those with compiled steps last and only with `compile`.

    Dropout would draw other masks for clients that train side by side. On a CPU convolutions of several models in one
    call are slower than one after another, and a large cohort leaves the caches.
    """
    family, clients = work.family, len(work.ids)
    on_cpu, side_by_side = family.device.type == "cpu", not family.has_dropout
    if on_cpu:
        side_by_side &= clients > 1 and not family.has_convolution
        whole = clients * family.size <= MAX_WHOLE_VALUES
        found = [way for way in _ON_CPU if whole or way.chunk_size is not None]
        compiled = found
    else:
        whole = clients > DEFAULT_CHUNK_SIZE  # else chunks of that size do the same
        found = [way for way in _ON_GPU if (side_by_side or not way.recorded) and (whole or way != Way(None))]
        compiled = [way for way in _ON_GPU_COMPILED if whole or way != Way(None)]
    if compile and in_layers(work) and has_compiler():
        found = [*found, *(way._replace(compile=True) for way in compiled)]
    return [way for way in found if side_by_side or way.chunk_size == 1]
