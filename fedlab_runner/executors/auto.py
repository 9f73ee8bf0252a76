"""Measures the executors on a run's own work and keeps the fastest that agrees with the loop."""

import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.memory import Memory, kind_of, shape_of
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.sample import expected_seconds, measure, sample
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.executors.work import Executor, Work
from fedlab_runner.system import usable_cores

_log = logging.getLogger(__name__)
CHUNK = 10
REFERENCE, UNTIMED = "loop", f"vectorized executor.chunk_size={CHUNK}"
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
    processes (null: as many as there are usable cores; 1: none) where that pays.
    """

    seconds: float
    workers: int | None
    _memory: Memory = field(init=False, repr=False, compare=False, default_factory=Memory)
    _chosen: dict[str, Executor] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ValueError(f"seconds must be >= 0, got {self.seconds}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be >= 1 or null, got {self.workers}")

    def in_run(self, folder: Path, rounds: int) -> Executor:
        """The same for one run: it notes its choice there and knows how many rounds are left."""
        self._memory.open(folder, rounds)
        return self

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        if not len(work.ids):
            return Loop(compile=False).train(work)
        kind = kind_of(work)
        if kind not in self._chosen:
            self._chosen[kind] = self._choose(work, kind)
        return self._chosen[kind].train(work)

    def _choose(self, work: Work, kind: str) -> Executor:
        rounds = self._memory.rounds_left(work)
        candidates = self._candidates(work) | self._compiled(work)
        name = self._memory.choice(kind)
        if name not in candidates:
            if expected_seconds(work) * rounds < self.seconds:
                name = UNTIMED if UNTIMED in candidates else REFERENCE
            else:
                name = self._fastest(work, rounds)
            self._memory.choose(kind, name)
        return candidates[name]

    def _candidates(self, work: Work) -> dict[str, Executor]:
        """What may carry out this work, by the words that choose it on the command line."""
        loop, chunks = Loop(compile=False), Vectorized(chunk_size=CHUNK, compile=False)
        found: dict[str, Executor] = {REFERENCE: loop}
        workers = min(self.workers or usable_cores(), len(work.ids))
        processes = f"processes executor.workers={workers}"
        shared = workers > 1 and work.task.device.type == "cpu"
        if shared:
            found[processes] = Processes(workers, loop)
        if not work.task.has_dropout:
            found[UNTIMED] = chunks
            if len(work.ids) > CHUNK:
                found["vectorized executor.chunk_size=null"] = Vectorized(chunk_size=None, compile=False)
                if shared:
                    found[f"{processes} executor@executor.inner=vectorized"] = Processes(workers, chunks)
        return found

    def _compiled(self, work: Work) -> dict[str, Executor]:
        """What is worth trying in long runs, where there is a compiler. Batch norm wants minibatches of every size, and
        each would be compiled anew; an algorithm's own functions may hold what cannot be compiled.
        """
        own = (work.loss, work.perturb, work.correct, work.per_step)
        plain = all(function is None for function in own) and not work.per_client
        compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
        if not (plain and compiler) or work.task.has_batch_norm or work.task.has_dropout:
            return {}
        found: dict[str, Executor] = {UNTIMED + COMPILED: Vectorized(chunk_size=CHUNK, compile=True)}
        if len(work.ids) > CHUNK:
            found["vectorized executor.chunk_size=null" + COMPILED] = Vectorized(chunk_size=None, compile=True)
        return found

    def _fastest(self, work: Work, rounds: int) -> str:
        """The name of the candidate with which the rest of the run ends first."""
        shape, steps = shape_of(work), int(work.num_steps.sum())
        known = self._memory.costs(shape)
        eager, compiled = self._candidates(work), self._compiled(work)
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
            _duration(total(ranked[0])),
            rounds,
        )
        return ranked[0]


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
