"""The runs in some folders, as their own files have them; nothing here is written to, and any of it may be running."""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fedlab_runner import sealed
from fedlab_runner import sweep as sweeps
from fedlab_runner.errors import UserError
from fedlab_runner.giving_up import read as read_note
from fedlab_runner.metric_direction import lower_is_better
from fedlab_runner.provenance import FILE as COMMANDS
from fedlab_runner.recorder import DIGEST, METRICS, SUMMARY
from fedlab_runner.recording.jsonl import Row, decode
from fedlab_runner.summary import summarise

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf's takes a second for ten runs


@dataclass(frozen=True)
class Run:
    """One run folder. `rows` and `timings` are those of `metrics.jsonl` and `timings.jsonl`, up to the first torn line.

    `choices` has the file chosen for each place of the config; `error` is why a job of a sweep failed, if it says so.
    """

    folder: Path
    config: Mapping[str, Any]
    choices: Mapping[str, str]
    rows: Sequence[Row]
    timings: Sequence[Row]
    commands: Sequence[str]
    commits: Sequence[str]
    error: str | None = None
    pruned: bool = False  # given up by the rule of its sweep
    damaged: bool = False  # its rows are not those that it ended with

    @property
    def name(self) -> str:
        """The name of the folder, which is the id of the run."""
        return self.folder.name

    @property
    def seed(self) -> Any:
        """The seed; None where a broken config has none."""
        return self.config.get("seed")

    @property
    def rounds(self) -> int:
        """How many rounds the run is to have."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else 0

    @property
    def done(self) -> int:
        """The last round that is on file; -1: not even the initial model."""
        return self.rows[-1]["round"] if self.rows else -1

    @property
    def finished(self) -> bool:
        """Whether all rounds are there, as they were; a run that was made longer and stopped is not finished."""
        return self.done >= self.rounds > 0 and not self.damaged

    @property
    def metric(self) -> str:
        """What the run is judged by."""
        return str(self._evaluation.get("metric", "test/accuracy"))

    @property
    def rule(self) -> str:
        """How one number is made of its evaluations."""
        return str(self._evaluation.get("summary", "best_of_last"))

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric is a loss or an error."""
        return lower_is_better(self.metric)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summaries of the rounds that there are, as `summary.json` of a finished run has them."""
        e = self._evaluation
        rows = [row for row in self.rows if row["round"] <= self.rounds]
        return summarise(rows, self.metric, self.rule, e.get("last", 5), e.get("every", 1), self.rounds)

    @property
    def objective(self) -> float | None:
        """The number that counts; None for a run that is not finished."""
        return float(self.summary["objective"]) if self.finished else None

    @property
    def status(self) -> str:
        """In words: finished, or how far it is, or why it ended."""
        if self.finished:
            return "finished"
        if self.damaged:
            return f"damaged: {METRICS} is not as the run left it; its command mends or refuses it"
        if self.error is not None:
            return f"failed: {self.error}" + (f" (round {self.done} of {self.rounds})" if self.done > 0 else "")
        if not self.rows:
            return "not begun"
        return f"{'given up, ' if self.pruned else ''}round {max(self.done, 0)} of {self.rounds}"

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to come."""
        return self.finished or self.pruned or self.error is not None

    @property
    def _evaluation(self) -> Mapping[str, Any]:
        found = self.config.get("evaluation")
        return found if isinstance(found, Mapping) else {}


def find(paths: Iterable[Path]) -> list[Run]:
    """The runs in folders of runs (at any depth), in single run folders, and of sweeps (`outputs/sweeps/<id>`).

    A run that is found twice counts once, where it is longest. Raises UserError where there is none.
    """
    found: dict[str, Run] = {}
    paths = list(paths)
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give folders of runs, such as outputs or outputs/sweeps/<id>")
        errors = _errors(path)
        for folder in _folders(path, errors):
            run = _read(folder, errors.get(folder.name))
            if run is not None and (run.name not in found or run.done > found[run.name].done):
                found[run.name] = run
    if not found:
        raise UserError(
            f"no runs in {', '.join(map(str, paths))}: a run's folder has a config.yaml and a metrics.jsonl"
        )
    return list(found.values())


def to_come(paths: Iterable[Path]) -> list[str]:
    """The jobs of the sweeps in some folders that have not ended, by their overrides, without what all jobs share."""
    found = []
    for sweep in (each for path in paths for each in _sweeps(path)):
        jobs = sweeps.to_come(sweep)
        if jobs:
            everyone = [*jobs, *(job["overrides"] for job in _jobs(sweep) if "overrides" in job)]
            shared = set.intersection(*map(set, everyone)) if len(everyone) > 1 else set()
            found += [" ".join(each for each in job if each not in shared) or "(defaults)" for job in jobs]
    return found


def _sweeps(path: Path) -> list[Path]:
    return [path] if (path / "jobs").is_dir() else [jobs.parent for jobs in path.rglob("sweeps/*/jobs")]


def _folders(path: Path, errors: Mapping[str, str]) -> list[Path]:
    """The run folders that a path stands for."""
    if (path / "jobs").is_dir():  # a sweep: its runs lie beside `sweeps`, wherever it was moved to
        names = {Path(job.get("folder", "")).name for job in _jobs(path)}
        return [path.parent.parent / name for name in sorted(names - {""})]
    if _is_run(path):
        return [path]
    inside = {file.parent for file in path.rglob("config.yaml") if file.parent.name != ".hydra"}
    failed = {file.parent.parent for file in path.rglob(".hydra/config.yaml") if file.parent.parent.name in errors}
    return sorted(folder for folder in inside | failed if _is_run(folder))


def _is_run(folder: Path) -> bool:
    return (folder / ".hydra").is_dir() or all((folder / name).is_file() for name in ("config.yaml", METRICS))


def _errors(path: Path) -> dict[str, str]:
    """What the sweeps in a folder say of the jobs that did not finish, by the name of the run's folder."""
    jobs = [job for sweep in _sweeps(path) for job in _jobs(sweep)]
    return {
        Path(job.get("folder", "")).name: str(job.get("error"))
        for job in jobs
        if job.get("status") == "failed" and job.get("error")
    }


def _jobs(sweep: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted((sweep / "jobs").glob("*.json")):
        try:
            found.append(sealed.read(path))
        except (OSError, sealed.Damaged):  # removed by a sweep that tries again; the run's own files tell all
            continue
    return found


def _read(folder: Path, error: str | None) -> Run | None:
    """The run in a folder; None where it has no config yet."""
    config = _yaml(folder / "config.yaml") or _yaml(folder / ".hydra" / "config.yaml")
    if not config:
        return None
    hydra = _yaml(folder / ".hydra" / "hydra.yaml").get("hydra", {})
    chosen = hydra.get("runtime", {}).get("choices", {})
    choices = {
        str(key).rpartition("@")[2]: str(value) for key, value in chosen.items() if value
    }  # of group@place: place
    starts = _lines(folder / COMMANDS, json.loads)
    commands = [start["command"] for start in starts if start.get("command")]
    if not commands and (overrides := hydra.get("overrides", {}).get("task")) is not None:
        commands = [shlex.join(["fedlab", *overrides])]
    return Run(
        folder,
        config,
        choices,
        rows=_lines(folder / METRICS, decode),
        timings=_lines(folder / "timings.jsonl", decode),
        commands=list(dict.fromkeys(commands)),
        commits=list(dict.fromkeys(start["commit"] for start in starts if start.get("commit"))),
        error=error,
        pruned=bool(read_note(folder)),
        damaged=_damaged(folder, config.get("rounds")),
    )


def _damaged(folder: Path, rounds: Any) -> bool:
    """Whether a run that has ended after `rounds` or more has other rows than those that its summary is of."""
    try:
        summary = json.loads((folder / SUMMARY).read_bytes())
        if summary["rounds"] < rounds:  # made longer and on its way: it may have done its last rounds again
            return False
        lines = (folder / METRICS).read_bytes().splitlines(keepends=True)[: summary["rounds"] + 1]
        return hashlib.sha256(b"".join(lines)).hexdigest() != str(summary[DIGEST])
    except (OSError, ValueError, TypeError, KeyError):  # not finished, of an older version, or itself damaged
        return False


def _yaml(path: Path) -> dict[str, Any]:
    """A mapping as it stands, interpolations included; empty where there is none."""
    try:
        content = _LOADER(path.read_bytes()).get_single_data()
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _lines(path: Path, read: Any) -> list[Any]:
    """The whole lines of a file, up to one that cannot be read: somebody may be writing it."""
    found: list[Any] = []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return found
    for line in lines:
        try:
            found.append(read(line))
        except ValueError:
            break
        if not line.endswith(b"\n"):
            found.pop()
    return found
