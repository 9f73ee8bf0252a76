"""Reads the runs in some folders and writes nothing there. The runs may still be running, or come from strangers."""

import hashlib
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fedlab_runner.config.hydra_record import EXPERIMENTS
from fedlab_runner.config.run_id import without_volatile
from fedlab_runner.core.metric_names import COUNT_PREFIX
from fedlab_runner.experiment.provenance import COMMANDS_FILE
from fedlab_runner.experiment.pruner import read_note
from fedlab_runner.report.runs import Run, told_apart
from fedlab_runner.sweep import records, states
from fedlab_runner.tracking.jsonl import Row, decode
from fedlab_runner.tracking.recorder import DIGEST, METRICS, SUMMARY
from fedlab_runner.tracking.summary import RULES
from fedlab_runner.utils import checksummed_json, untrusted
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.escaping import short
from fedlab_runner.utils.untrusted import Unreadable

MAX_MAGNITUDE = 1e100  # of a number; a larger one counts as NaN, because its sums and squares could overflow
MAX_ERROR_CHARACTERS = 500  # of a job's error
MAX_EXPERIMENTS = 100  # of a run, that a report knows
_AGE = "[0-9]{1,9}"  # a staleness in a metric's key
_Note = tuple[str | None, str | None]  # state and error of a job's record


class FoundRuns(NamedTuple):
    """The runs, and the faults of folders that cannot be read, by path."""

    runs: list[Run]
    unreadable: dict[str, str]


def find(paths: Iterable[Path]) -> FoundRuns:
    """The runs in folders of runs (at any depth), in single run folders, and of sweeps (`outputs/sweeps/<id>`).

    Two folders hold copies of one run if they have the same name and the same config but for volatile keys. Of copies
    an undamaged one counts, and of these the longest. Raises UserError if there is no run.
    """
    places, paths = dict[Path, tuple[bool, _Note]](), list(paths)
    for given in paths:
        if not os.path.isdir(given):
            raise UserError(f"{given} is not a folder: give folders of runs, such as outputs or outputs/sweeps/<id>")
        notes = _notes(path := given.resolve())
        for folder in _folders(path, notes):
            places.setdefault(folder, (given.is_absolute(), notes.get(folder, (None, None))))
    found, unreadable = dict[tuple[str, str], Run](), dict[str, str]()
    for folder, (absolute, note) in places.items():
        try:
            run = _read(folder, *note)
        except Unreadable as fault:
            unreadable[str(folder) if absolute else os.path.relpath(folder)] = str(fault)
            continue
        if run is None:
            continue
        copies = folder.name, digest(without_volatile(run.config))
        if copies not in found or run.rank > found[copies].rank:
            found[copies] = run
    if not found:
        why = "".join(f"; {folder} cannot be read: {fault}" for folder, fault in islice(unreadable.items(), 3))
        raise UserError(
            f"no runs in {', '.join(map(str, paths))}: a run's folder has a config.yaml and a metrics.jsonl{why}"
        )
    return FoundRuns(told_apart(list(found.values())), unreadable)


def to_come(paths: Iterable[Path]) -> list[str]:
    """The overrides of the sweeps' jobs that have not begun, without those that all jobs of a sweep share."""
    found = []
    for sweep in (each for path in paths for each in _sweeps(path.resolve())):
        if jobs := records.to_come(sweep):
            everyone = [*jobs, *(job["overrides"] for job in _jobs(sweep) if untrusted.are_texts(job.get("overrides")))]
            shared = set.intersection(*map(set, everyone)) if len(everyone) > 1 else set()
            found += [" ".join(each for each in job if each not in shared) or "(defaults)" for job in jobs]
    return found


def records_of(paths: Iterable[Path], folders: Container[Path]) -> list[tuple[str, Path]]:
    """The records of the jobs of the runs in these folders: the name of the sweep and the file of each."""
    sweeps = dict.fromkeys(sweep for path in paths for sweep in _sweeps(path.resolve()))
    return [
        (sweep.name, path) for sweep in sweeps for path, job in _job_files(sweep) if _run_folder(sweep, job) in folders
    ]


def _walk(path: Path) -> Iterator[tuple[Path, set[str]]]:
    """Each folder below a path, at any depth, with the names in it. Follows no links."""
    left = [path]
    while left:
        folder = left.pop()
        try:
            with os.scandir(folder) as entries:
                inside = list(entries)
        except OSError:  # removed, or not readable
            continue
        left += [folder / entry.name for entry in inside if entry.is_dir(follow_symlinks=False)]
        yield folder, {entry.name for entry in inside}


def _sweeps(path: Path) -> list[Path]:
    if (path / "jobs").is_dir():
        return [path]
    return [folder for folder, names in _walk(path) if "jobs" in names and folder.parent.name == "sweeps"]


def _folders(path: Path, notes: Mapping[Path, _Note]) -> list[Path]:
    """The run folders of a path, which is a sweep, a run, or a folder above runs."""
    if (path / "jobs").is_dir():  # a sweep
        return sorted(notes)
    if _is_run(*next(_walk(path), (path, set[str]()))):
        return [path]
    return sorted(
        folder
        for folder, names in _walk(path)
        if folder.name != ".hydra" and ("config.yaml" in names or folder in notes) and _is_run(folder, names)
    )


def _is_run(folder: Path, names: set[str]) -> bool:
    return (".hydra" in names and (folder / ".hydra").is_dir()) or {"config.yaml", METRICS} <= names


def _run_folder(sweep: Path, job: Mapping[str, Any]) -> Path | None:
    """The folder of a job's run, or the one that it would have beside `sweeps`; None if the record has none."""
    name = Path(noted := str(job.get("folder", ""))).name
    return None if name in ("", "..") else records.run_folder(sweep, noted) or sweep.parent.parent / name


def _notes(path: Path) -> dict[Path, _Note]:
    """State and error in the records of the sweeps in a folder, by the run's folder.

    If several sweeps have a record of one run, a failure takes precedence.
    """
    jobs = [(_run_folder(sweep, job), job) for sweep in _sweeps(path) for job in _jobs(sweep)]
    found = dict[Path, _Note]()
    for folder, job in sorted(jobs, key=lambda each: each[1].get("status") == states.FAILED):
        if folder is not None:
            error = str(job.get("error") or "") if job.get("status") == states.FAILED else ""
            found[folder] = str(job.get("status")), short(error, MAX_ERROR_CHARACTERS) if error else None
    return found


def _jobs(sweep: Path) -> list[dict[str, Any]]:
    return [job for _, job in _job_files(sweep)]


def _job_files(sweep: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in sorted((sweep / "jobs").glob("*.json")):
        # A sweep that runs again has removed the record. The run's own files have everything.
        with suppress(OSError, checksummed_json.Damaged):
            found.append((path, checksummed_json.read(path)))
    return found


def _read(folder: Path, noted: str | None, error: str | None) -> Run | None:
    """The run in a folder; None if it has no config yet. Raises Unreadable with the name of the damaged file."""
    config = _mapping(folder, "config.yaml") or _mapping(folder, ".hydra/config.yaml")
    if not config:
        return None
    hydra = told if isinstance(told := _mapping(folder, ".hydra/hydra.yaml").get("hydra"), dict) else {}
    starts = [start for start in _lines(folder, COMMANDS_FILE, untrusted.parse_json)[0] if isinstance(start, dict)]
    rows, damaged = _rows(folder)
    choices = _choices(hydra)
    asked = [*_lines(folder, EXPERIMENTS, lambda line: line.decode().strip())[0], choices.get("experiment", "")]
    run = Run(
        folder,
        config,
        choices,
        rows=rows,
        timings=_lines(folder, "timings.jsonl", _numbers)[0],
        commands=_texts(starts, "command") or _started(hydra),
        commits=_texts(starts, "commit"),
        noted=noted,
        error=error,
        pruned=bool(read_note(folder)),
        experiments=list(dict.fromkeys(filter(None, asked)))[-MAX_EXPERIMENTS:],
    )
    _check(run)
    summary = _mapping(folder, SUMMARY)
    damaged = damaged or _damaged(folder, summary, run.rounds)
    return replace(run, damaged=damaged, warnings=_warnings(summary, run.done))


def _check(run: Run) -> None:
    """Raises Unreadable if the config is not that of a run, or does not fit its rows."""
    try:
        without_volatile(run.config)
    except (AttributeError, TypeError):
        raise Unreadable("config.yaml: is not the config of a run") from None
    e = run.evaluation
    counts = [e.get("last", 1), e.get("every", 1)]
    known_values = run.rule in RULES and isinstance(e.get("target"), int | float | None)
    if run.rows and not (known_values and all(isinstance(each, int) and each >= 1 for each in counts)):
        known = ", ".join(RULES)
        raise Unreadable(
            f"config.yaml: evaluation has other values than this version allows (summary is one of {known})"
        )


def _choices(hydra: Mapping[str, Any]) -> dict[str, str]:
    """The choice for each place of the config."""
    runtime = hydra.get("runtime")
    chosen = runtime.get("choices") if isinstance(runtime, dict) else None
    pairs = chosen.items() if isinstance(chosen, dict) else ()
    return {key.rpartition("@")[2]: str(value) for key, value in pairs if value}  # of group@place: place


def _started(hydra: Mapping[str, Any]) -> list[str]:
    """The command in Hydra's record, for a run that has not noted its command yet."""
    overrides = hydra.get("overrides")
    task = overrides.get("task") if isinstance(overrides, dict) else None
    return [shlex.join(["fedlab", *task])] if untrusted.are_texts(task) else []


def _texts(starts: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """The texts under a key, each once."""
    return list(dict.fromkeys(each for start in starts if isinstance(each := start.get(key), str) and each))


def _damaged(folder: Path, summary: Mapping[str, Any], rounds: int) -> bool:
    """Whether the rows of a run that ended after `rounds` or more differ from the rows of its summary."""
    ended, digest = summary.get("rounds"), summary.get(DIGEST)
    if type(ended) is not int or digest is None:  # not finished
        return False
    if ended < rounds:  # the run was made longer and is running: its last rounds may have been run again
        return False
    hashed = hashlib.sha256()
    with suppress(FileNotFoundError):
        for line in islice(untrusted.lines(folder / METRICS), max(0, min(ended, sys.maxsize - 1) + 1)):
            hashed.update(line)
    return hashed.hexdigest() != str(digest)


def _warnings(summary: Mapping[str, Any], done: int) -> list[str]:
    """The warnings of the run's summary, if the summary belongs to the present rows."""
    told = summary.get("warnings", [])
    if not untrusted.are_texts(told):
        raise Unreadable(f"{SUMMARY}: warnings are not texts")
    return told if summary.get("rounds") == done else []


def _mapping(folder: Path, name: str) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, with unresolved interpolations; empty if there is no file."""
    try:
        content = (untrusted.read_json if name.endswith(".json") else untrusted.read_yaml)(folder / name)
    except FileNotFoundError:
        return {}
    except Unreadable as fault:
        raise Unreadable(f"{name} {fault}") from None
    if not isinstance(content, dict | None):
        raise Unreadable(f"{name} is no mapping")
    return content or {}


def _rows(folder: Path) -> tuple[list[Row], bool]:
    """The rows of the rounds 0, 1, 2, ..., and whether anything else follows them."""
    rows, damaged = _lines(folder, METRICS, _numbers)
    count = next((i for i, row in enumerate(rows) if row["round"] != i), len(rows))
    return rows[:count], damaged or count < len(rows)


def _numbers(line: bytes) -> Row:
    row = decode(line)
    if any(key.startswith(COUNT_PREFIX) and not re.fullmatch(_AGE, key[len(COUNT_PREFIX) :]) for key in row):
        raise ValueError("not a staleness")
    return {key: value if abs(value) <= MAX_MAGNITUDE else math.nan for key, value in row.items()}


def _lines(folder: Path, name: str, read: Callable[[bytes], Any]) -> tuple[list[Any], bool]:
    """The values of a file's lines up to the first damaged line, and whether there is a damaged line.

    A last line without a line end is not damaged: a run may be writing it.
    """
    found: list[Any] = []
    try:
        for line in untrusted.lines(folder / name):
            if not line.endswith(b"\n"):
                break
            try:
                found.append(read(line))
            except ValueError:
                return found, True
    except FileNotFoundError:
        pass
    except Unreadable as fault:
        raise Unreadable(f"{name} {fault}") from None
    return found, False
