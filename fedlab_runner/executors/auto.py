"""Chooses the executor of a run: by a rule on a CPU, by kept measurements on a GPU."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedlab_runner.core.additions_trial import draws, obstacle
from fedlab_runner.core.executor import Executor, OfOne, Parallel
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work
from fedlab_runner.executors._autotune import rule
from fedlab_runner.executors._autotune.measure import agrees, expected_seconds, sample
from fedlab_runner.executors._autotune.memory import kind_of
from fedlab_runner.executors._autotune.timed import fastest
from fedlab_runner.executors._autotune.ways import REFERENCE, SIDE_BY_SIDE, WAYS, Way, fitting
from fedlab_runner.executors._chunks import SingleProcessExecutor
from fedlab_runner.executors._fork.buffers import SHARED
from fedlab_runner.executors._run_notes import mapping_at, note, noted, noted_anywhere, noted_count
from fedlab_runner.executors.graphs import has_compiler
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import DEFAULT_CHUNK_SIZE, Vectorized
from fedlab_runner.utils.system import usable_cores
from fedlab_runner.utils.validate import at_least

_log = logging.getLogger(__name__)
EXECUTORS, PROCESSES, SERVER = "executors", "processes", "server"  # keys of the run's notes
COMPILED, PLAIN = "compiled", "not compiled"  # notes of the server's steps


@dataclass(frozen=True)
class Auto:
    """Chooses the executor for each kind of local work of a run, at its first cohort.

    On a CPU it takes the executor with the least expected time by a rule, a function of model, cohort, rounds, cores
    and threads. Compiled steps count if the rest of the run pays for the compiler. It times nothing, so that a run
    gives the same bits whatever else the machine does. If it expects `seconds` or more of local training, or compiles
    steps, it first compares models with those of `loop`, and refuses an executor that does not agree. The rule
    expects too little time where a local step takes several gradients, or where a small network has many layers. By the
    same rule it compiles the gradient of the server's large minibatches, which it first compares too.

    On a GPU, whose sums can come in another order anyway, a run of `seconds` or more times the executors on a sample of
    its own work, unless other processes use the machine. The user's cache folder keeps the measurements by type of
    machine, code and kind of work.

    The run's folder keeps the choices, so that a run that continues on the same type of machine keeps its executors and
    computes the same bits. Dropout's masks, and the random numbers that an algorithm's functions draw, depend on the
    clients that train side by side: with either it trains one client after another. `workers` bounds the worker
    processes (null: as many as there are usable cores; 1: none). With `compile=false` it never compiles. While the
    compiler works, a signal to stop has to wait.
    """

    seconds: float
    workers: int | None
    compile: bool

    def __post_init__(self) -> None:
        at_least(0, seconds=self.seconds)
        at_least(1, workers=self.workers)

    def bind_run(self, folder: Path, rounds: int) -> Executor:
        """An executor for one run, which notes its choices in the folder and knows how many rounds are left."""
        return _Choosing(self, folder, rounds)

    def adopt(self, notes: Path, folder: Path) -> None:
        """Copies the choices from the notes of a run on another machine to the folder of a new run. So the same
        executors compute the new run, if this machine has them.
        """
        told = noted_anywhere(notes, EXECUTORS)
        here = {kind: words for kind, words in told.items() if words in WAYS and WAYS[words].runs_here()}
        if here:
            note(folder, **{EXECUTORS: here})
        if (steps := noted_anywhere(notes, SERVER)) and (has_compiler() or COMPILED not in steps.values()):
            note(folder, **{SERVER: steps})

    def check(self, family: ModelFamily) -> None:
        """See `Executor`; there is always one that can."""

    def parallel(self, clients: int) -> Parallel:
        return Vectorized(chunk_size=DEFAULT_CHUNK_SIZE, compile=False).parallel(clients)

    def num_processes(self) -> int:
        return self.workers or usable_cores()

    def compiles(self, family: ModelFamily, kind: str, steps: int, operations: float, round: int) -> bool:
        return _Choosing(self, None, round + 1).compiles(family, kind, steps, operations, round)

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return SHARED.empty(rows, columns, dtype, device)  # the choice may be processes

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        """Trains outside of a run."""
        return _Choosing(self, None, work.round + 1).train(work)

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        # The choice is about local training alone.
        return Vectorized(chunk_size=DEFAULT_CHUNK_SIZE, compile=False).map_models(family, function, *rows, fill=fill)


class _Choosing(SingleProcessExecutor):
    """The executor of one run, chosen for each kind of work at its first cohort."""

    def __init__(self, settings: Auto, folder: Path | None, rounds: int) -> None:
        self._settings, self._folder, self._rounds = settings, folder, rounds
        self._chosen: dict[str, Executor] = {}
        self._server: dict[str, str] = {} if folder is None else mapping_at(noted(folder), SERVER)
        kept = None if folder is None or settings.workers else noted_count(folder, PROCESSES)
        self._processes = kept or settings.num_processes()
        if folder is not None:
            note(folder, **{PROCESSES: self._processes})

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        if not len(work.ids):
            return Loop(compile=False).train(work)
        kind = kind_of(work)
        if kind not in self._chosen:
            self._chosen[kind] = self._choose(work, kind)
        return self._chosen[kind].train(work)

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return self._settings.map_models(family, function, *rows, fill=fill)

    def parallel(self, clients: int) -> Parallel:
        return self._settings.parallel(clients)

    def num_processes(self) -> int:
        return self._processes

    def compiles(self, family: ModelFamily, kind: str, steps: int, operations: float, round: int) -> bool:
        if kind not in self._server:
            fits = self._settings.compile and has_compiler() and family.device.type == "cpu"
            rounds = max(1, self._rounds - round)
            pays = fits and rule.compiling_pays(family, steps, operations, rounds, torch.get_num_threads())
            self._server[kind] = COMPILED if pays else PLAIN
            if self._folder is not None:
                note(self._folder, **{SERVER: self._server})
            if pays:
                _log.info("executor=auto compiles the server's steps, which can take a minute")
        return self._server[kind] == COMPILED

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._settings.empty(rows, columns, dtype, device)

    def _choose(self, work: Work, kind: str) -> Executor:
        rounds = max(1, self._rounds - work.round)
        noted_ways = {} if self._folder is None else mapping_at(noted(self._folder), EXECUTORS)
        way = WAYS.get(str(noted_ways.get(kind)))
        if way is None:
            way = self._on_cpu(work, rounds) if work.family.device.type == "cpu" else self._on_gpu(work, rounds)
            if self._folder is not None:
                note(self._folder, **{EXECUTORS: noted_ways | {kind: way.words}})
        return way.executor(self._best(work, [way], rounds)[1])

    def _best(self, work: Work, ways: Sequence[Way], rounds: int) -> tuple[Way, int]:
        return rule.best(work, ways, rounds, self._processes, torch.get_num_threads())

    def _on_cpu(self, work: Work, rounds: int) -> Way:
        """The way with the least expected time. A long or compiled one must agree with the reference."""
        ways = fitting(work, compile=self._settings.compile)
        while True:
            way, workers = self._best(work, ways, rounds)
            left = rounds * rule.seconds_a_round(work, way, workers, torch.get_num_threads())
            if way.compile:
                _log.info("executor=auto compiles the local steps, which can take a minute")
            elif way.chunk_size == 1 or left < self._settings.seconds:  # the reference's own steps, or too few
                break
            if agrees(sample(work, expected_seconds(work)), way.words, way.executor(workers), REFERENCE.executor(None)):
                break
            ways.remove(way)
        if left >= self._settings.seconds:
            where = f" in {workers} processes" if workers > 1 else ""
            _log.info("local training with executor=%s%s", way.words, where)
        return way

    def _on_gpu(self, work: Work, rounds: int) -> Way:
        """The fastest way by measurement; without measurements, the way of the rule."""
        if expected_seconds(work) * rounds >= self._settings.seconds:
            found = fastest(work, fitting(work, compile=self._settings.compile), rounds)
            if found is not None:
                return found
        return REFERENCE if draws(work) or obstacle(work) else SIDE_BY_SIDE
