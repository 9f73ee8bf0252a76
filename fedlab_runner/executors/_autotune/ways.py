"""The ways in which `executor=auto` can train a cohort, and which of them fit a kind of work."""

from typing import NamedTuple

import torch

from fedlab_runner.core.additions_trial import draws, obstacle
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.work import Work
from fedlab_runner.executors._chunks import ChunkedExecutor
from fedlab_runner.executors.compiled import in_layers
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.executors.graphs import has_compiler
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import DEFAULT_CHUNK_SIZE, Vectorized

MAX_WHOLE_VALUES = 2**25  # of a cohort's models, up to which all clients may train in one call on a CPU


class Way(NamedTuple):
    """A way to train a cohort. Ways differ in the last bits of the result; numbers of worker processes do not."""

    chunk_size: int | None  # clients that train side by side, 1: one after another, None: all
    processes: bool = False  # whether processes of one thread each share the chunks; else one process with all threads
    compile: bool = False
    recorded: bool = False  # as CUDA graphs

    @property
    def words(self) -> str:
        """The overrides that choose this way on the command line."""
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
        """The executor; with `processes` it has `workers` processes."""
        if self.recorded:
            return CudaGraph(self.chunk_size, self.compile)
        one: ChunkedExecutor = Loop(self.compile) if self.chunk_size == 1 else Vectorized(self.chunk_size, self.compile)
        return Processes(workers, one) if self.processes else one


REFERENCE = Way(1)  # the way with which the others must agree
SIDE_BY_SIDE = Way(DEFAULT_CHUNK_SIZE)  # vectorised chunks in one process
_SHARED = (Way(1, processes=True), Way(DEFAULT_CHUNK_SIZE, processes=True))  # ways with worker processes
_ON_CPU = (REFERENCE, *_SHARED, Way(None))  # candidates on a CPU, without compiled steps
# Candidates on a GPU, without compiled steps.
_ON_GPU = (REFERENCE, SIDE_BY_SIDE, Way(None), Way(1, recorded=True), Way(None, recorded=True))
_ON_GPU_COMPILED = (SIDE_BY_SIDE, Way(None), Way(None, recorded=True))  # candidates on a GPU with compiled steps
WAYS = {  # all ways, by their words
    way.words: way
    for way in (
        *_ON_CPU,
        *(way._replace(compile=True) for way in _ON_CPU),
        *_ON_GPU,
        *(way._replace(compile=True) for way in _ON_GPU_COMPILED),
    )
}


def fitting(work: Work, *, compile: bool) -> list[Way]:
    """The ways that fit the work. Ways with compiled steps come last, and only with `compile`.

    Dropout, or a function that draws, would draw other numbers for clients that train side by side. On a CPU,
    convolutions of several models are slower in one call than one after another, and a large cohort does not fit into
    the caches.
    """
    family, clients = work.family, len(work.ids)
    on_cpu, side_by_side = family.device.type == "cpu", not (draws(work) or obstacle(work))
    if on_cpu:
        side_by_side &= clients > 1 and not family.has_convolution
        whole = clients * family.size <= MAX_WHOLE_VALUES
        found = [way for way in _ON_CPU if whole or way.chunk_size is not None]
        compiled = found
    else:
        whole = clients > DEFAULT_CHUNK_SIZE  # otherwise chunks of that size are the whole cohort
        found = [way for way in _ON_GPU if (side_by_side or not way.recorded) and (whole or way != Way(None))]
        compiled = [way for way in _ON_GPU_COMPILED if whole or way != Way(None)]
    if compile and in_layers(work) and has_compiler():
        found = [*found, *(way._replace(compile=True) for way in compiled)]
    return [way for way in found if side_by_side or way.chunk_size == 1]
