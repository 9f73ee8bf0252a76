"""Computes runs of a bundle again on this machine."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedlab_runner.config.build import check
from fedlab_runner.executors.auto import Auto
from fedlab_runner.executors.threads import set_threads
from fedlab_runner.experiment import provenance
from fedlab_runner.experiment.run import run_whole
from fedlab_runner.plots.partition import PARTITION_FILE
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.utils.errors import UserError
from fedlab_runner.verify import configs
from fedlab_runner.verify.compare import Comparison, apart, compare

NOTES = "executor.json"  # file of a run with its threads and executors


class Recomputed(NamedTuple):
    """A recomputed run."""

    comparison: Comparison
    rounds: int
    same_partition: bool | None  # None: the bundle has no table of the partition
    objective: tuple[float, float] | None  # there and here; None if fewer rounds were computed
    same_objective: bool  # within the tolerance, or not compared


def choose(groups: Sequence[SeedGroup], wanted: str, draw: int) -> list[Run]:
    """The runs to compute. `wanted` is a number of runs, drawn by `draw` from all settings in turn, or beginnings of
    names.

    Raises UserError if `wanted` is neither.
    """
    runs = [run for group in groups for run in group.runs if run.rows]
    if not wanted.isdecimal():
        found = []
        for name in wanted.split(","):
            fitting = [run for run in runs if run.name == name] or [run for run in runs if run.name.startswith(name)]
            if not name or not fitting:
                raise UserError(f"--cells must be a number or names of runs with rounds, got {name!r}")
            found += [run for run in fitting if run not in found]
        return found
    piles = [sorted((run for run in group.runs if run.rows), key=lambda run: _lot(run, draw)) for group in groups]
    piles = sorted(filter(None, piles), key=lambda pile: _lot(pile[0], draw))
    rounds = max((len(pile) for pile in piles), default=0)
    drawn = [pile[i] for i in range(rounds) for pile in piles if i < len(pile)]
    return drawn[: int(wanted[:9])]


def rounds_of(run: Run, wanted: int | None) -> int:
    """The number of rounds to compute: `wanted` (None: all) of the recorded ones that the run's config asks for."""
    return min(run.done, run.rounds, run.done if wanted is None else wanted)


def recompute(run: Run, settings: configs.Settings, folder: Path, wanted: int | None, tolerance: float) -> Recomputed:
    """Computes `wanted` rounds (None: all) of a run in a folder, and continues a run that is there.

    Raises UserError and RunFailed as a run does.
    """
    rounds = rounds_of(run, wanted)
    start = provenance.last_start(run.folder)
    cfg = settings.config(configs.read(run.folder), rounds, start)
    components = check(cfg).build()
    if isinstance(components.executor, Auto) and not settings.chooses("executor"):
        set_threads(components.threads, folder)
        components.executor.adopt(run.folder / NOTES, folder)
    outcome = run_whole(folder, cfg)
    e = components.evaluation
    whole = rounds == run.rounds and run.finished
    objective = (float(run.summary["objective"]), float(outcome.summary["objective"])) if whole else None
    return Recomputed(
        compare(_up_to(run.rows, rounds), outcome.metrics, e.metric, e.every, tolerance),
        rounds,
        _same_partition(run.folder / PARTITION_FILE, folder / PARTITION_FILE),
        objective,
        objective is None or apart(e.metric, *objective) <= tolerance,
    )


def _up_to(rows: Sequence[Row], rounds: int) -> list[Row]:
    return [row for row in rows if row["round"] <= rounds]


def _same_partition(there: Path, here: Path) -> bool | None:
    return there.read_bytes() == here.read_bytes() if there.is_file() else None


def _lot(run: Run, draw: int) -> str:
    """A hash of a run for the draw, the same on every machine."""
    return hashlib.sha256(f"{draw} {run.name}".encode()).hexdigest()
