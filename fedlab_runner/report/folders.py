"""Reads the runs in some folders and writes nothing there. The runs may still be running, or come from strangers."""

import os
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from fedlab_runner.config.run_id import without_volatile
from fedlab_runner.report.reading import read_run
from fedlab_runner.report.runs import Run, told_apart
from fedlab_runner.sweep import records, states
from fedlab_runner.tracking.recorder import METRICS
from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.untrusted import Unreadable

# State and error of a job's record, and its rounds if it has finished.
_Note = tuple[str | None, str | None, int | None]


class FoundRuns(NamedTuple):
    """The runs, and the faults of folders that cannot be read, by path."""

    runs: list[Run]
    unreadable: dict[str, str]


class NoRun(NamedTuple):
    """A job of a sweep that has no run: it has not begun, it failed without a folder of its own, or the folder of its
    run is gone.
    """

    state: str  # one of `states.NOT_BEGUN`, `FAILED` and `MISSING`
    words: str  # its overrides without those that all jobs of the sweep share
    error: str


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
            places.setdefault(folder, (given.is_absolute(), notes.get(folder, (None, None, None))))
    found, unreadable = dict[tuple[str, str], Run](), dict[str, str]()
    for folder, (absolute, (state, error, rounds)) in places.items():
        try:
            run = read_run(folder, state, error)
        except Unreadable as fault:
            unreadable[str(folder) if absolute else os.path.relpath(folder)] = str(fault)
            continue
        if run is None:
            continue
        if rounds is not None and run.rounds > rounds:
            told = (
                f"its sweep asked for {count_of(rounds, 'round')}: it has been made longer, which is another condition"
            )
            run = replace(run, warnings=[*run.warnings, told])
        copies = folder.name, digest(without_volatile(run.config))
        if copies not in found or run.rank > found[copies].rank:
            found[copies] = run
    if not found:
        why = "".join(f"; {folder} cannot be read: {fault}" for folder, fault in islice(unreadable.items(), 3))
        raise UserError(
            f"no runs in {', '.join(map(str, paths))}: a run's folder has a config.yaml and a metrics.jsonl{why}"
        )
    return FoundRuns(told_apart(list(found.values())), unreadable)


def without_run(paths: Iterable[Path], found: FoundRuns, experiment: str | None = None) -> list[NoRun]:
    """The sweeps' jobs that have neither a run among those found nor a folder that cannot be read. With an experiment,
    only of sweeps that are given themselves: a folder above may have sweeps of others.

    A found folder elsewhere is that of a job if it has the name of the job's folder and, in the records of the given
    sweeps and of those beside a given run, either no job (it was moved) or one with the same overrides (it is a copy).
    """
    given = [path.resolve() for path in paths if experiment is None or os.path.isdir(path / "jobs")]
    sweeps = {sweep: _noted(sweep) for path in given for sweep in _sweeps(path)}
    above = {path.parent for path in map(Path.resolve, paths) if _holds_run(path)}  # of a thousand runs it is one
    beside = {sweep for path in above for sweep in _sweeps(path / "sweeps")} - {*sweeps}
    noted = [*chain.from_iterable(sweeps.values()), *chain.from_iterable(map(_noted, beside))]
    there = {run.folder for run in found.runs} | {Path(os.path.abspath(folder)) for folder in found.unreadable}
    moved = {folder.name for folder in there.difference(folder for _, folder in noted)}
    told = {_asked(job, folder) for job, folder in noted if folder in there}
    without = list[NoRun]()
    for sweep, jobs in sweeps.items():
        shared = set.intersection(*(set(job.overrides) for job, _ in jobs)) if len(jobs) > 1 else set()
        for job, folder in jobs:
            if folder is not None:
                # Records of one run may be in several sweeps of a folder, and in copies of a sweep.
                names = {(str(sweep.parent.parent), job.folder), _asked(job, folder)}
                if folder in there or folder.name in moved or names & told or _holds_run(folder):
                    continue  # in the last case it has begun since, or a copy of it counts
                told |= names
            state = job.status if job.status in (states.FAILED, states.NOT_BEGUN) else states.MISSING
            words = " ".join(each for each in job.overrides if each not in shared) or "(defaults)"
            without.append(NoRun(state, words, str(job.error)))
    return without


def _noted(sweep: Path) -> list[tuple[records.Job, Path | None]]:
    """The jobs of a sweep, each with the folder of its run."""
    return [(job, _run_folder(sweep, vars(job))) for row in records.read(sweep) for job in row.jobs]


def _asked(job: records.Job, folder: Path) -> tuple[str, ...]:
    """What tells a job from those of other sweeps: the name of its run's folder, and its overrides."""
    return folder.name, *sorted(job.overrides)


def records_of(paths: Iterable[Path], folders: Container[Path]) -> list[tuple[str, Path]]:
    """The records of the jobs of the runs in these folders: the name of the sweep and the file of each."""
    sweeps = dict.fromkeys(sweep for path in paths for sweep in _sweeps(path.resolve()))
    return [
        (sweep.name, path) for sweep in sweeps for path, job in _job_files(sweep) if _run_folder(sweep, job) in folders
    ]


def _walk(path: Path) -> Iterator[tuple[Path, set[str]]]:
    """Each folder below a path, at any depth, with the names in it. Follows no links.

    A folder whose names this user may not list, such as another user's, counts as that of a run: reading it says why
    not.
    """
    left = [path]
    while left:
        folder = left.pop()
        try:
            with os.scandir(folder) as entries:
                inside = list(entries)
        except PermissionError:
            yield folder, {"config.yaml", METRICS}
            continue
        except (OSError, ValueError):  # removed, or a name that no folder can have
            continue
        left += [folder / entry.name for entry in inside if entry.is_dir(follow_symlinks=False)]
        yield folder, {entry.name for entry in inside}


def _sweeps(path: Path) -> list[Path]:
    if os.path.isdir(path / "jobs"):
        return [path]
    return [folder for folder, names in _walk(path) if "jobs" in names and folder.parent.name == "sweeps"]


def _folders(path: Path, notes: Mapping[Path, _Note]) -> list[Path]:
    """The run folders of a path, which is a sweep, a run, or a folder above runs."""
    if os.path.isdir(path / "jobs"):  # a sweep
        return sorted(notes)
    if _holds_run(path):
        return [path]
    return sorted(
        folder
        for folder, names in _walk(path)
        if folder.name != ".hydra" and ("config.yaml" in names or folder in notes) and _is_run(folder, names)
    )


def _holds_run(folder: Path) -> bool:
    return _is_run(*next(_walk(folder), (folder, set[str]())))


def _is_run(folder: Path, names: set[str]) -> bool:
    return (".hydra" in names and os.path.isdir(folder / ".hydra")) or {"config.yaml", METRICS} <= names


def _run_folder(sweep: Path, job: Mapping[str, Any]) -> Path | None:
    """The folder of a job's run, or the one that it would have beside `sweeps`; None if the record has none."""
    name = Path(noted := str(job.get("folder", ""))).name
    return None if name in ("", "..") else records.run_folder(sweep, noted) or sweep.parent.parent / name


def _notes(path: Path) -> dict[Path, _Note]:
    """State and error in the records of the sweeps in a folder, by the run's folder.

    If several sweeps have a record of one run, a failure takes precedence, and the most rounds count.
    """
    jobs = [(_run_folder(sweep, job), job) for sweep in _sweeps(path) for _, job in _job_files(sweep)]
    found = dict[Path, _Note]()
    for folder, job in sorted(jobs, key=lambda each: each[1].get("status") == states.FAILED):
        if folder is not None:
            error = str(job.get("error") or "") if job.get("status") == states.FAILED else ""
            known = [found.get(folder, (None, None, None))[2], _rounds(job)]
            most = max((each for each in known if each is not None), default=None)
            found[folder] = str(job.get("status")), error or None, most
    return found


def _rounds(job: Mapping[str, Any]) -> int | None:
    """The rounds of a finished job, by its record."""
    summary = job.get("summary")
    rounds = summary.get("rounds") if isinstance(summary, dict) and job.get("status") == states.FINISHED else None
    return rounds if isinstance(rounds, int) else None


def _job_files(sweep: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in sorted((sweep / "jobs").glob("*.json")):
        # A sweep that runs again has removed the record. The run's own files have everything.
        with suppress(OSError, checksummed_json.Damaged):
            found.append((path, checksummed_json.read(path)))
    return found
