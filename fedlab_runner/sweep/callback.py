"""Records a sweep while it runs: a folder for the sweep, and a file for each job that ends.

It collects nothing in memory: jobs may run in other processes or on other machines, and any of them may die.
"""

import contextlib
import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedlab_runner.config.build import rounds_of, unchecked_fingerprint
from fedlab_runner.config.explain import explain
from fedlab_runner.config.hydra_record import overrides_of
from fedlab_runner.config.recorded import other_fingerprint
from fedlab_runner.sweep import progress, search, states, table
from fedlab_runner.sweep.records import GRID, TOTAL, Job, read, read_job, read_json
from fedlab_runner.tracking.jsonl import clean, decode
from fedlab_runner.tracking.recorder import METRICS
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils import checksummed_json, signals, streams, untrusted
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.past_hydra import past_hydra
from fedlab_runner.utils.sweep_job import FOLDER, IN_SWEEP, JOB, NAME, note_sweep, sweep_folder
from fedlab_runner.utils.system import SHARED_BY, THREADS, THREADS_OF_SWEEP, jobs_at_once

_log = logging.getLogger(__name__)


class QuietReturn(JobReturn):
    """The result of a job whose failure was told when it failed: Hydra's would print the job's overrides once more."""

    @property
    def return_value(self) -> Any:
        if isinstance(self._return_value, BaseException):
            self._fail(self._return_value)
        return self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value

    def _fail(self, error: BaseException) -> None:
        raise error


class GridReturn(QuietReturn):
    """The result of a job of a grid, which goes on after a failure in an earlier batch (`sweeper.max_batch_size`)."""

    def _fail(self, error: BaseException) -> None:
        failures.append(error)


failures: list[BaseException] = []  # of the jobs of this command's grid, whose end raises the first


class SweepCallback(Callback):
    """Makes the folder of a sweep in the process that starts it. When a job ends, it tells the traceback of a fault of
    the program, and drops what Hydra would keep.
    """

    @past_hydra()
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        streams.make_optional()
        overrides = overrides_of(config.hydra)
        folder = Path(config.hydra.sweep.dir).absolute() / "sweeps" / sweep_id(overrides, _params(config))
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        for path in (folder / "jobs").glob("*.json"):  # the sweep tries unfinished jobs again
            if (job := read_job(path)) is None or job.status != states.FINISHED:
                path.unlink()
        write_text_atomically(folder / "command.txt", shlex.join(["fedlab", *sys.argv[1:]]) + "\n")
        grid = _grid(config)
        write_text_atomically(folder / GRID, json.dumps(grid))
        count = len(grid) or config.hydra.sweeper.get("n_trials")
        write_text_atomically(folder / TOTAL, json.dumps({"jobs": count}))
        if any((folder / "jobs").iterdir()):  # a killed command may have left the table behind its records
            table.refresh(folder)
        table.begin(folder)
        shared_by = str(jobs_at_once(config.hydra.launcher))
        threads = os.environ.get(THREADS, "")
        os.environ.update({NAME: folder.name, FOLDER: str(folder), SHARED_BY: shared_by, THREADS_OF_SWEEP: threads})
        if _starts_processes(config.hydra):
            signals.keep_from_children()  # submitit's end with a traceback each, and kill a run within a second
        if "optuna" in config.hydra.sweeper["_target_"]:
            search.begin(config.hydra.sweeper)
        shown = os.path.relpath(folder / "table.md")
        _log.info("%s, results in %s", count_of(count, "job") if count else "the jobs", shown, extra=IN_SWEEP)

    @past_hydra()
    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if _starts_processes(config.hydra):
            signals.give_to_children()
        # Hydra's Optuna sweeper writes the best trial beside all runs, where the next search would replace it.
        best = Path(config.hydra.sweep.dir) / "optimization_results.yaml"
        if (folder := sweep_folder()) is not None and best.is_file():
            best.replace(folder / best.name)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        # Launchers keep all jobs until the end, and a job's two configs take 0.2 MB. Sweepers need only the value.
        if config.hydra.mode == RunMode.MULTIRUN:
            job_return.cfg = job_return.hydra_cfg = None
            job_return.__class__ = GridReturn if is_grid(config.hydra) else QuietReturn
            if isinstance(error := job_return._return_value, Exception):
                if explain(error, ()) is None:
                    _log.error("a fault of the program", exc_info=error)
                _drop_traceback(error)


def _drop_traceback(error: BaseException | None) -> None:
    """Drops the tracebacks of an error and of those before it: their frames hold the job's data and models."""
    if error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        _drop_traceback(error.__cause__)
        _drop_traceback(error.__context__)


def _starts_processes(hydra: Any) -> bool:
    """Whether submitit starts a process on this machine for each job of a sweep, by Hydra's part of a config."""
    return str(hydra.launcher["_target_"]).endswith("submitit_launcher.LocalLauncher")


def is_grid(hydra: Any) -> bool:
    """Whether all jobs of a sweep are known before, by Hydra's part of a config; a search chooses them in turn."""
    return str(hydra.sweeper["_target_"]).endswith("BasicSweeper")


def _grid(config: DictConfig) -> list[list[str]]:
    """The overrides of every job of a grid; empty for a search."""
    if not is_grid(config.hydra):
        return []
    try:
        parsed = OverridesParser.create().parse_overrides([*_params(config), *overrides_of(config.hydra)])
        return [job for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
    except HydraException:  # a fault that Hydra reports, or glob(*), which needs the config groups
        return []


def _params(config: DictConfig) -> list[str]:
    """The overrides that the config itself has for a sweep, such as those of an experiment."""
    return [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]


def sweep_id(overrides: Iterable[str], params: Iterable[str] = ()) -> str:
    """The keys that vary and a hash of all overrides in any order, e.g. `algorithm_std_seed-1a2b3c4d`. The hash also
    covers the config's own `params`: once they have changed, the table of a sweep is another one.
    """
    overrides = sorted(overrides)
    parsed = OverridesParser.create().parse_overrides(overrides)
    varying = [line for line, each in zip(overrides, parsed, strict=True) if each.is_sweep_override()]
    names = [line.partition("=")[0].rpartition(".")[2] for line in varying]
    names += [line.replace("=", "-") for line in overrides if line.startswith("hparams_search=")]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', '_'.join(names))[:60] or 'sweep'}-{digest([*overrides, *sorted(params)])}"


class JobRecord:
    """The record of the current job of a sweep. Reports on the terminal when the job begins and ends."""

    def __init__(self, cfg: DictConfig) -> None:
        hydra = HydraConfig.get()
        self._rounds, seed = _value(rounds_of, cfg), _value(DictConfig.get, cfg, "seed")
        self._cfg, self._metric = cfg, str(_value(OmegaConf.select, cfg, "evaluation.metric"))
        self._overrides, self._seed = overrides_of(hydra), seed if isinstance(seed, int) else None
        self._output, self._number = Path(hydra.runtime.output_dir), int(hydra.job.num) + 1
        self._folder = os.path.relpath(hydra.runtime.output_dir, hydra.runtime.cwd)
        rounds = self._summary().get("rounds")
        known = isinstance(rounds, int) and isinstance(self._rounds, int)
        self._reused = known and rounds >= self._rounds  # whether the run was finished before the job
        self._began = time.monotonic()

    def begin(self) -> None:
        """Notes that the job has begun. A job that finished in an earlier call keeps its record until it ends."""
        if (sweep := sweep_folder()) is None:
            return
        known = read_job(self._path(sweep))
        if known is None or known.status != states.FINISHED:
            self._write(sweep, self._job(states.UNFINISHED))
        os.environ[JOB] = progress.place(sweep, self._number)
        _log.info("%s", progress.begun(sweep, self._number, read(sweep), self._overrides), extra=IN_SWEEP)

    def end(self, status: str, objective: float | None = None, error: str | None = None) -> None:
        """Notes how the job has ended, and updates the sweep's table."""
        if (sweep := sweep_folder()) is None:  # the launcher drops the environment: only the run has the result
            return
        refused = status == states.FAILED and self._is_other()
        if refused:  # the folder has another run, whose numbers are not those of the job
            self._folder, self._reused = "", False
        known = read_job(self._path(sweep))
        seconds = (known and known.seconds) if self._reused else time.monotonic() - self._began
        summary = {} if refused else self._summary()
        if summary.get("rounds") != self._rounds:  # of a longer run, with this job among its rounds
            summary = {key: summary[key] for key in ("metric", "rule") if key in summary} | {"rounds": self._rounds}
            summary |= self._summary_so_far() if status == states.FINISHED and self._reused else {}
        job = self._job(status, objective=objective, error=error, summary=summary, seconds=seconds)
        if known is None or _text(known) != _text(job):  # a finished run started again leaves the table as it is
            self._write(sweep, job)
        if not refused and (self._output / "config.yaml").is_file():  # the run has begun
            note_sweep(self._output)
        if status != states.STOPPED:  # the command itself reports that in one line
            level = logging.ERROR if status == states.FAILED else logging.INFO
            _log.log(level, "%s", progress.ended(sweep, self._number, job, self._metric, self._reused), extra=IN_SWEEP)

    def _is_other(self) -> bool:
        """Whether the run's folder has another run."""
        return other_fingerprint(self._output, unchecked_fingerprint(self._cfg)) is not None

    def _summary(self) -> dict[str, Any]:
        """The summary in the run's folder, which may be of a call with other rounds; empty without one."""
        return read_json(self._output / "summary.json")

    def _summary_so_far(self) -> dict[str, Any]:
        """The summary that the longer run in the folder had after this job's rounds."""
        e, rounds = self._cfg.evaluation, self._cfg.rounds
        rows = [decode(line) for line in islice(untrusted.lines(self._output / METRICS), rounds + 1)]
        found: dict[str, Any] = clean(summarise(rows, e.metric, e.summary, e.last, e.every, rounds, e.target))
        return found

    def _job(self, status: str, objective: float | None = None, **more: Any) -> Job:
        return Job(self._overrides, self._seed, status, objective, self._folder, **more)

    def _path(self, sweep: Path) -> Path:
        # Named by the overrides, so that a repeated job replaces its record, even if an edited config has moved its
        # run.
        return sweep / "jobs" / f"{digest(sorted(self._overrides))}.json"

    def _write(self, sweep: Path, job: Job) -> None:
        write_text_atomically(self._path(sweep), _text(job))
        table.refresh_in_turn(sweep)


def _text(job: Job) -> str:
    """A record's file. Equal jobs have equal texts, also those with NaN, which equals nothing."""
    return checksummed_json.text(asdict(job))


def _value(read: Callable[..., Any], *of: Any) -> Any:
    """What `read` finds in a config; None where it cannot resolve it, which ends the job with its reason."""
    try:
        return read(*of)
    except OmegaConfBaseException:
        return None


def remove_if_empty(folder: Path) -> None:
    """Removes the folder of a sweep that was refused before its first job, and the empty folders above it."""
    if any((folder / "jobs").iterdir()):
        return
    for path in (
        folder / "command.txt",
        folder / GRID,
        folder / TOTAL,
        folder.parent.parent / "multirun.yaml",
    ):  # Hydra made the last one
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a folder with other files stays
        for each in (folder / "jobs", folder, folder.parent, folder.parent.parent):
            each.rmdir()
