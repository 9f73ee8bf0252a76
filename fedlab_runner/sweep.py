"""The record of a sweep: one file a job, and a table over seeds that is written anew whenever a job ends.

Nothing is collected in memory: the jobs may run in other processes or on other machines, and any of them may die.
"""

import contextlib
import json
import logging
import os
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from fedlab_runner import escaping, sealed, terminal, untrusted
from fedlab_runner.escaping import visible
from fedlab_runner.files import write_text_atomically
from fedlab_runner.run_id import digest
from fedlab_runner.sweep_records import Job, Row, read, read_job, read_json
from fedlab_runner.system import SHARED_BY, jobs_at_once

# The environment variables by which the jobs of any launcher know their sweep: its name (W&B's group) and its folder.
NAME, FOLDER = "FEDLAB_SWEEP", "FEDLAB_SWEEP_FOLDER"
GRID = "grid.json"  # in the sweep's folder: the overrides of each job, where they are known before

_log = logging.getLogger(__name__)


class SweepCallback(Callback):
    """Opens the folder of a sweep in the process that starts it, and lets go of what Hydra would keep of each job."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        terminal.optional()
        overrides = list(config.hydra.overrides.task)
        folder = Path(config.hydra.sweep.dir).absolute() / "sweeps" / sweep_id(overrides)
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        for path in (folder / "jobs").glob("*.json"):  # what failed last time is tried again
            if read_job(path).get("status") != "finished":
                path.unlink()
        write_text_atomically(folder / "command.txt", shlex.join(["fedlab", *sys.argv[1:]]) + "\n")
        write_text_atomically(folder / GRID, json.dumps(_grid(config)))
        shared_by = str(jobs_at_once(config.hydra.launcher))
        os.environ.update({NAME: folder.name, FOLDER: str(folder), SHARED_BY: shared_by})

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        # Launchers collect all jobs until the end, and their two configs are 0.2 MB; sweepers want the value alone.
        if config.hydra.mode == RunMode.MULTIRUN:
            job_return.cfg = job_return.hydra_cfg = None


def _grid(config: DictConfig) -> list[list[str]]:
    """The overrides of every job of a grid; nothing where a sweeper makes up its jobs as it goes."""
    sweeper = config.hydra.sweeper
    if not sweeper["_target_"].endswith("BasicSweeper"):
        return []
    params = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    try:
        parsed = OverridesParser.create().parse_overrides([*params, *config.hydra.overrides.task])
        return [job for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
    except HydraException:  # it says so itself, or it needs the config groups, for glob(*)
        return []


def to_come(folder: Path) -> list[list[str]]:
    """The overrides of the jobs of a grid that have left no word yet: they have not begun, or are at work."""
    try:
        grid = untrusted.read_json(folder / GRID)
    except (OSError, ValueError):  # a sweep of an older version
        return []
    if not (isinstance(grid, list) and all(map(untrusted.are_texts, grid))):
        return []
    known = {tuple(sorted(job.overrides)) for row in read(folder) for job in row.jobs}
    return [job for job in grid if tuple(sorted(job)) not in known]


def sweep_id(overrides: Iterable[str]) -> str:
    """The keys that vary and a hash of all overrides in any order, e.g. `algorithm_std_seed-1a2b3c4d`."""
    overrides = sorted(overrides)
    names = [line.partition("=")[0].rpartition(".")[2] for line in overrides if re.search(r"=.*[,(]", line)]
    names += [line.replace("=", "-") for line in overrides if line.startswith("hparams_search=")]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', '_'.join(names))[:60] or 'sweep'}-{digest(overrides)}"


def record(cfg: DictConfig, status: str, objective: float | None = None, error: str | None = None) -> None:
    """Write how the current job of a sweep ended, and the table with it."""
    folder = os.environ.get(FOLDER)
    if folder is None:  # a launcher that drops the environment: the run folder still tells all
        return
    hydra = HydraConfig.get()
    summary = read_json(Path(hydra.runtime.output_dir) / "summary.json")
    if summary.get("rounds") != cfg.get("rounds"):  # of an earlier, longer or shorter call of the same run
        summary = {}
    seed = cfg.get("seed")
    job = Job(
        overrides=list(hydra.overrides.task),
        seed=seed if isinstance(seed, int) else None,
        status=status,
        objective=objective,
        folder=os.path.relpath(hydra.runtime.output_dir, hydra.runtime.cwd),
        summary=summary,
        error=error,
    )
    # Named by the overrides: a job that is run again takes its own place, even if an edited config moved its folder.
    write_text_atomically(Path(folder) / "jobs" / f"{digest(sorted(job.overrides))}.json", sealed.text(asdict(job)))
    refresh(Path(folder))


def refresh(folder: Path) -> list[Row]:
    """Write table.md and table.csv anew from the jobs that have ended.

    Safe with several writers: whoever writes last looks again afterwards, so no job is left out.
    """
    rows = read(folder)
    while True:
        write_text_atomically(folder / "table.md", markdown(rows))
        write_text_atomically(folder / "table.csv", comma_separated(rows))
        if (now := read(folder)) == rows:
            return rows
        rows = now


def finished(folder: Path) -> list[Path]:
    """The run folders of a sweep's finished jobs, which lie beside `sweeps`, wherever that was moved to."""
    jobs = [job for row in read(folder) for job in row.jobs if job.status == "finished"]
    return [folder.parent.parent / Path(job.folder).name for job in jobs]


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table; overrides that all settings share are left out."""
    shared = set.intersection(*(set(row.setting) for row in rows)) if len(rows) > 1 else set()
    body = []
    for row in rows:
        name = " ".join(each for each in row.setting if each not in shared) or "(defaults)"
        values = row.values()
        body.append([name, str(len(values)), _mean(values), _std(values), row.remarks])
    return ["setting", "seeds", "mean", "std", "failed"], body


def markdown(rows: Sequence[Row]) -> str:
    """The table of the objective, for people."""
    header, body = cells(rows)
    lines = [header, ["---"] + ["---:"] * 3 + ["---"], *([escaping.markdown(cell) for cell in line] for line in body)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def comma_separated(rows: Sequence[Row]) -> str:
    """The table with mean and std of every number of the summaries, for programs."""
    keys = sorted({key for row in rows for key in set().union(*(job.summary for job in row.jobs)) if row.values(key)})
    header = ["setting", "seeds", "failed", "mean", "std"]
    lines: list[Sequence[Any]] = [header + [f"{key} {what}" for key in keys for what in ("mean", "std")]]
    for row in rows:
        columns = [row.values(), *(row.values(key) for key in keys)]
        numbers = [float(cell) if cell else None for v in columns for cell in (_mean(v, 10), _std(v, 10))]
        lines.append([" ".join(row.setting), len(row.values()), len(row.failed), *numbers])
    return escaping.comma_separated(lines)


def remove_if_empty(folder: Path) -> None:
    """Take back the folder of a sweep that was refused before any job, and the folders that were made for it."""
    if any((folder / "jobs").iterdir()):
        return
    for path in (folder / "command.txt", folder / GRID, folder.parent.parent / "multirun.yaml"):  # the last is Hydra's
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # what holds anything else stays
        for each in (folder / "jobs", folder, folder.parent, folder.parent.parent):
            each.rmdir()


def show(folder: Path) -> None:
    """Print the table, draw the pictures, and say where they are."""
    import rich
    from rich.table import Table
    from rich.text import Text

    from fedlab_runner import sweep_plots

    if not (rows := read(folder)):  # the command was refused before any job
        return
    header, body = cells(rows)
    table = Table(*header)
    for line in body:
        table.add_row(*(Text(visible(cell)) for cell in line))
    rich.print(table)
    for path in (folder / "table.md", *sweep_plots.plot_sweep(folder)):
        print(visible(os.path.relpath(path)))
    print(f"a page of it all: fedlab-report {shlex.quote(os.path.relpath(folder))}")


def _mean(values: Sequence[float], digits: int = 4) -> str:
    return f"{statistics.fmean(values):.{digits}g}" if values else ""


def _std(values: Sequence[float], digits: int = 4) -> str:
    """The sample standard deviation; one value has none."""
    return f"{statistics.stdev(values):.{digits}g}" if len(values) > 1 else ""
