"""Measures the executors on a run's own work and keeps the fastest that agrees with the loop."""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.memory import Memory, kind_of, shape_of
from fedlab_runner.executors.pieces import Unchanging
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.sample import expected_seconds, measure, sample
from fedlab_runner.executors.vectorized import CHUNK, Vectorized
from fedlab_runner.executors.work import Executor, OfOne, Work
from fedlab_runner.system import usable_cores
from fedlab_runner.task import Task
from fedlab_runner.wording import duration

_log = logging.getLogger(__name__)
REFERENCE, UNTIMED = "loop", f"vectorized executor.chunk_size={CHUNK}"
WHOLE = "vectorized executor.chunk_size=null"
SHARED_CHUNKS = "+executor@executor.inner=vectorized"
COMPILED = " executor.compile=true"
COMPILING_SECONDS = 60.0  # what is expected of it before it is known: shorter runs do not try


@dataclass(frozen=True)
class Auto:
    """Times the other executors on the first cohort of a run, keeps the fastest whose models agree with those of
    `loop`, and says which.

    What was measured is remembered for this machine and such work in the user's cache folder, what was chosen in the
    run's folder: a run that is continued on the same machine goes on with it, and so to the same bits. Runs with less
    than `seconds` of expected local training are not worth a measurement: they take `vectorized` with its defaults. A
    model with dropout would draw other masks when clients train side by side: it is left to `loop`, in `workers`
    processes (null: as many as there are usable cores; 1: none) where that pays. With `compile` it tries compiled steps
    too, for which a run must be long; while the compiler works, a signal to stop has to wait.
    """

    seconds: float
    workers: int | None
    compile: bool

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ValueError(f"seconds must be >= 0, got {self.seconds}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be >= 1 or null, got {self.workers}")

    def in_run(self, folder: Path, rounds: int) -> Executor:
        """The same for one run: it notes its choices there and knows how many rounds are left."""
        memory = Memory()
        memory.open(folder, rounds)
        return _Choosing(self, memory)

    def at_once(self, clients: int) -> int:
        return min(clients, CHUNK)

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        """Outside of a run: chosen anew, by what is remembered for the machine."""
        return _Choosing(self, Memory()).train(work)

    def each(self, task: Task, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        # Without a choice: what is no local training does not depend on what was measured.
        return Vectorized(chunk_size=CHUNK, compile=False).each(task, function, *rows, fill=fill)


class _Choosing(Unchanging):
    """The executor of one run, which is chosen when its first cohort comes."""

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

    def each(self, task: Task, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return self._settings.each(task, function, *rows, fill=fill)

    def at_once(self, clients: int) -> int:
        return self._settings.at_once(clients)

    def _choose(self, work: Work, kind: str) -> Executor:
        rounds, executors = self._memory.rounds_left(work), self._executors()
        name = self._memory.choice(kind)
        if name not in executors:
            if expected_seconds(work) * rounds < self._settings.seconds:
                name = REFERENCE if work.task.has_dropout else UNTIMED
            else:
                name = self._fastest(work, rounds)
            self._memory.choose(kind, name)
        return executors[name]

    def _executors(self) -> dict[str, Executor]:
        """All that can be chosen, by the words that choose it on the command line; whatever the cohort is, as a
        run that is continued has to find there what it began with.
        """
        workers = self._settings.workers or usable_cores()
        loop, chunks = Loop(compile=False), Vectorized(chunk_size=CHUNK, compile=False)
        return {
            REFERENCE: loop,
            f"processes executor.workers={workers}": Processes(workers, loop),
            UNTIMED: chunks,
            WHOLE: Vectorized(chunk_size=None, compile=False),
            f"processes executor.workers={workers} {SHARED_CHUNKS}": Processes(workers, chunks),
            UNTIMED + COMPILED: Vectorized(chunk_size=CHUNK, compile=True),
            WHOLE + COMPILED: Vectorized(chunk_size=None, compile=True),
        }

    def _fit(self, work: Work, *, compiled: bool) -> dict[str, Executor]:
        """Those that may be of use for this work, compiled ones or the others."""
        dropout, few = work.task.has_dropout, len(work.ids) <= CHUNK
        workers = min(self._settings.workers or usable_cores(), len(work.ids))
        shared = workers > 1 and work.task.device.type == "cpu"
        compilable = compiled and self._settings.compile and _compilable(work)

        def fits(name: str) -> bool:
            stacked = name.startswith("vectorized") or name.endswith(SHARED_CHUNKS)
            useless = few and (name.startswith(WHOLE) or name.endswith(SHARED_CHUNKS))
            if (stacked and dropout) or useless or (name.startswith("processes") and not shared):
                return False
            return compilable if name.endswith(COMPILED) else not compiled

        return {name: executor for name, executor in self._executors().items() if fits(name)}

    def _fastest(self, work: Work, rounds: int) -> str:
        """The name of the candidate with which the rest of the run ends first."""
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
            known |= measure(part, compiled)
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


def _compilable(work: Work) -> bool:
    """Whether compiled steps are worth a try: batch norm wants minibatches of every size, and each would be compiled
    anew; an algorithm's own functions may hold what cannot be compiled.
    """
    own = (work.loss, work.perturb, work.correct, work.per_step)
    plain = all(function is None for function in own) and not work.per_client and not work.task.has_batch_norm
    return plain and any(map(shutil.which, ("c++", "g++", "clang++")))
