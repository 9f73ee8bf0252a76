"""Times the executors on a run's own work and keeps the fastest that agrees with the loop."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Executor, OfOne, Work
from fedlab_runner.executors._autotune.cache import Memory, kind_of, shape_of
from fedlab_runner.executors._autotune.measure import expected_seconds, measure, sample
from fedlab_runner.executors._chunks import SingleProcessExecutor
from fedlab_runner.executors.compiled import has_compiler, in_layers
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import DEFAULT_CHUNK_SIZE, Vectorized
from fedlab_runner.utils.durations import duration
from fedlab_runner.utils.system import usable_cores
from fedlab_runner.utils.validate import at_least

_log = logging.getLogger(__name__)
# The candidates that others must agree with, and that short runs take.
REFERENCE, UNTIMED = "loop", f"vectorized executor.chunk_size={DEFAULT_CHUNK_SIZE}"
COMPILING_SECONDS = 60.0  # expected time of the compiler before it was measured


class Candidate(NamedTuple):
    """An executor, with the properties by which it fits a kind of work."""

    executor: Executor
    stacked: bool = False  # trains clients side by side
    whole: bool = False  # for a small cohort another candidate does the same
    shared: bool = False  # shares the cohort among processes
    compiled: bool = False
    recorded: bool = False  # replays CUDA graphs


@dataclass(frozen=True)
class Auto:
    """Times the other executors on the first cohort of a run, keeps the fastest whose models agree with those of
    `loop`, and says which.

    Measurements are kept by machine, code and kind of work in the user's cache folder, choices in the run's folder: a
    run that is continued on the same machine keeps its executor, and so computes the same bits. Runs with less than
    `seconds` of expected local training take `vectorized` with its defaults, untimed. A model with dropout would draw
    other masks when clients train side by side: it is trained by `loop`, in `workers` processes (null: as many as there
    are usable cores; 1: none) where that is faster. With `compile`, compiled steps are timed too where minutes of
    training are left; while the compiler works, a signal to stop has to wait.
    """

    seconds: float
    workers: int | None
    compile: bool

    def __post_init__(self) -> None:
        at_least(0, seconds=self.seconds)
        at_least(1, workers=self.workers)

    def bind_run(self, folder: Path, rounds: int) -> Executor:
        """An executor for one run, which notes its choices in the folder and knows how many rounds are left."""
        memory = Memory()
        memory.open(folder, rounds)
        return _Choosing(self, memory)

    def max_parallel_clients(self, clients: int) -> int:
        return min(clients, DEFAULT_CHUNK_SIZE)

    def num_processes(self) -> int:
        return self.workers or usable_cores()

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        """Trains outside of a run, with an executor chosen by the measurements in the user's cache."""
        return _Choosing(self, Memory()).train(work)

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        # No choice: only local training may depend on measurements.
        return Vectorized(chunk_size=DEFAULT_CHUNK_SIZE, compile=False).map_models(family, function, *rows, fill=fill)


class _Choosing(SingleProcessExecutor):
    """The executor of one run, chosen for each kind of work at its first cohort."""

    def __init__(self, settings: Auto, memory: Memory) -> None:
        self._settings, self._memory = settings, memory
        self._chosen: dict[str, Executor] = {}

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        if not len(work.ids):
            return Loop(compile=False).train(work)
        kind = kind_of(work)
        if kind not in self._chosen:
            self._chosen[kind] = self._choose(work, kind)
        return self._chosen[kind].train(work)

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return self._settings.map_models(family, function, *rows, fill=fill)

    def max_parallel_clients(self, clients: int) -> int:
        return self._settings.max_parallel_clients(clients)

    def num_processes(self) -> int:
        return self._settings.num_processes()

    def _choose(self, work: Work, kind: str) -> Executor:
        rounds, candidates = self._memory.rounds_left(work), self._candidates()
        name = self._memory.choice(kind)
        if name not in candidates:
            if expected_seconds(work) * rounds < self._settings.seconds:
                name = REFERENCE if work.family.has_dropout else UNTIMED
            else:
                name = self._fastest(work, rounds)
            self._memory.choose(kind, name)
        return candidates[name].executor

    def _candidates(self) -> dict[str, Candidate]:
        """All candidates, by the words that choose them on the command line.

        They do not depend on the cohort: a run that is continued must find its first choice among them.
        """
        workers = self.num_processes()
        loop, chunks = Loop(compile=False), Vectorized(chunk_size=DEFAULT_CHUNK_SIZE, compile=False)
        whole, processes = "vectorized executor.chunk_size=null", f"processes executor.workers={workers}"
        graph, together = "cuda_graph executor.chunk_size=1", "cuda_graph executor.chunk_size=null"
        compiled = " executor.compile=true"
        return {
            REFERENCE: Candidate(loop),
            processes: Candidate(Processes(workers, loop), shared=True),
            UNTIMED: Candidate(chunks, stacked=True),
            whole: Candidate(Vectorized(chunk_size=None, compile=False), stacked=True, whole=True),
            f"{processes} +executor@executor.inner=vectorized": Candidate(
                Processes(workers, chunks), stacked=True, whole=True, shared=True
            ),
            graph: Candidate(CudaGraph(chunk_size=1, compile=False), recorded=True),
            together: Candidate(CudaGraph(chunk_size=None, compile=False), stacked=True, recorded=True),
            REFERENCE + compiled: Candidate(Loop(compile=True), compiled=True),
            f"{processes} executor.inner.compile=true": Candidate(
                Processes(workers, Loop(compile=True)), shared=True, compiled=True
            ),
            f"{processes} +executor@executor.inner=vectorized executor.inner.compile=true": Candidate(
                Processes(workers, Vectorized(chunk_size=DEFAULT_CHUNK_SIZE, compile=True)),
                stacked=True,
                whole=True,
                shared=True,
                compiled=True,
            ),
            UNTIMED + compiled: Candidate(
                Vectorized(chunk_size=DEFAULT_CHUNK_SIZE, compile=True), stacked=True, compiled=True
            ),
            whole + compiled: Candidate(
                Vectorized(chunk_size=None, compile=True), stacked=True, whole=True, compiled=True
            ),
            together + compiled: Candidate(
                CudaGraph(chunk_size=None, compile=True), stacked=True, compiled=True, recorded=True
            ),
        }

    def _fit(self, work: Work, *, compiled: bool) -> dict[str, Executor]:
        """The candidates that fit this work, compiled or not."""
        few, dropout = len(work.ids) <= DEFAULT_CHUNK_SIZE, work.family.has_dropout
        workers = min(self.num_processes(), len(work.ids))
        shareable = workers > 1 and work.family.device.type == "cpu"
        compilable = self._settings.compile and in_layers(work) and has_compiler()
        recordable = work.family.device.type == "cuda" and not dropout
        return {
            name: each.executor
            for name, each in self._candidates().items()
            if each.compiled == compiled
            and not (each.stacked and dropout)
            and not (each.whole and few)
            and (shareable or not each.shared)
            and (compilable or not each.compiled)
            and (recordable or not each.recorded)
        }

    def _fastest(self, work: Work, rounds: int) -> str:
        """The name of the candidate with the least time for the rest of the run."""
        shape, steps = shape_of(work), int(work.num_steps.sum())
        known = self._memory.costs(shape)
        eager, compiled = self._fit(work, compiled=False), self._fit(work, compiled=True)
        part = sample(work, expected_seconds(work))

        def total(name: str) -> float:
            cost = known[name]
            return float("inf") if cost.a_step is None else cost.once + cost.a_step * steps * rounds

        if not known.keys() >= eager.keys():
            known |= measure(part, eager)
        if not known.keys() >= compiled.keys() and min(map(total, eager)) > 5 * COMPILING_SECONDS:
            _log.info("executor=auto tries compiled steps, which can take a minute or more")
            beside = {name: eager[name] for name in (REFERENCE, min(eager, key=total))}  # under the same load
            known |= measure(part, beside | compiled)
        self._memory.learn(shape, known)
        ranked = sorted((eager | compiled).keys() & known.keys(), key=total)
        a_round = {name: f"{(known[name].a_step or 0) * steps:.3g} s" for name in ranked if known[name].a_step}
        _log.info(
            "local training takes %s a round with executor=%s, chosen from %s; about %s for the next %d rounds",
            a_round[ranked[0]],
            ranked[0],
            ", ".join(f"{name} ({seconds})" for name, seconds in a_round.items() if name != ranked[0]),
            duration(total(ranked[0])),
            rounds,
        )
        return ranked[0]
