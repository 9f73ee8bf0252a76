"""The records of a sweep's jobs: one file for each job, read as a file that a stranger may have written."""

import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedlab_runner.sweep import states
from fedlab_runner.utils import checksummed_json, untrusted
from fedlab_runner.utils.escaping import visible

GRID = "grid.json"  # in the folder of a grid: the overrides of each job
TOTAL = "total.json"  # in the folder of a sweep: the number of its jobs
# A number in a text of overrides, with or without an exponent.
_NUMBER = re.compile(r"((?<![\w.])-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?(?![\w.])|[0-9]+)", re.IGNORECASE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """How one job of a sweep ended, or that it has begun."""

    overrides: list[str]
    seed: int | None
    status: str  # one of `states.OF_JOBS`
    objective: float | None
    folder: str
    summary: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    seconds: float | None = None  # duration of the job; of several starts the longest

    @cached_property
    def setting(self) -> tuple[str, ...]:
        """The job's overrides without the seed, in alphabetical order."""
        return tuple(each for each in self.asked if each.partition("=")[0] != "seed")

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """The job's overrides in alphabetical order, which tell it from the other jobs."""
        return tuple(sorted(self.overrides))


@dataclass(frozen=True)
class Row:
    """All jobs of one setting."""

    setting: tuple[str, ...]
    jobs: Sequence[Job]

    def values(self) -> list[float]:
        """The finite objectives of the finished jobs."""
        return [float(job.objective) for job in self.counting if job.objective is not None]

    def numbers(self, key: str) -> list[float]:
        """The values of a number of the summaries, of the same jobs; empty if one of them has no finite one, because a
        mean over the other jobs, as of the rounds to a target, would not be that of the setting.
        """
        found = [job.summary.get(key) for job in self.counting]
        known = [value for value in found if isinstance(value, int | float) and math.isfinite(value)]
        return known if len(known) == len(found) else []

    @cached_property
    def counting(self) -> list[Job]:
        """The finished jobs whose objective is finite."""
        return [job for job in self.finished if job.objective is not None and math.isfinite(job.objective)]

    @cached_property
    def finished(self) -> list[Job]:
        """The jobs that have finished."""
        return self.of(states.FINISHED)

    def of(self, state: str) -> list[Job]:
        """The jobs in a state."""
        return [job for job in self.jobs if job.status == state]

    @property
    def uncounted(self) -> list[str]:
        """The numbers of seeds that do not count, by state, and of those whose objective is not finite."""
        return states.counted((job.status for job in self.jobs), self.not_finite)

    @property
    def not_finite(self) -> int:
        """The number of finished jobs whose objective is not finite."""
        return len(self.finished) - len(self.counting)

    @property
    def reason(self) -> str:
        """The first reason for failures; empty without any."""
        return next((str(job.error) for job in self.of(states.FAILED)), "")


_FIELDS = {each.name for each in fields(Job)}  # names of the fields of a record
# Finished jobs by the files of their records, with the file's number, size and time of change: a sweep reads all
# records whenever a job begins or ends.
_finished: dict[Path, tuple[tuple[int, int, int], Job]] = {}
MAX_KNOWN = 2**17  # settings whose places in the order are kept, for the same reason


def read(folder: Path) -> list[Row]:
    """A row for each setting, in the order of their names. Jobs of a grid without a record have not begun."""
    paths = sorted((folder / "jobs").glob("*.json"), key=str)
    jobs = [job for path in paths if (job := read_job(path)) is not None]
    known = {job.asked for job in jobs}
    jobs += [job for job in _grid(folder) if job.asked not in known]
    found: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        found.setdefault(job.setting, []).append(job)
    return [Row(setting, found[setting]) for setting in sorted(found, key=_place)]


def natural(setting: Iterable[str]) -> list[Any]:
    """A sort key that puts delay.std=5 before delay.std=20, and local.lr=0.05 before local.lr=0.1."""
    parts = _NUMBER.split(" ".join(setting))
    # float() has no limit of digits, unlike int(). Numbers beyond its precision compare as texts.
    return [(float(part), len(part.lstrip("-0")), part) if i % 2 else part for i, part in enumerate(parts)]


_place = lru_cache(MAX_KNOWN)(natural)


def read_job(path: Path) -> Job | None:
    """The job in a file; None without a file, and, with a warning, if the file is damaged."""
    try:
        stamp = _stamp(path)
        kept, job = _finished.get(path, (None, None))
        if kept != stamp or job is None:
            values = checksummed_json.read(path)
            if values.keys() != _FIELDS or not _sound(values):
                raise checksummed_json.Damaged("is damaged")
            job = Job(**values)
            if job.status == states.FINISHED:
                _finished[path] = stamp, job
    except OSError:
        return None
    except checksummed_json.Damaged as fault:
        _warn_once(f"{visible(str(path))} {fault} and does not count: the command of the sweep writes it again")
        return None
    return job


def stamps(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """What changes if a job changes its record, by record."""
    found = {}
    for path in (folder / "jobs").glob("*.json"):
        with suppress(OSError):  # removed meanwhile
            found[path] = _stamp(path)
    return found


def _stamp(path: Path) -> tuple[int, int, int]:
    """The number, size and time of change of a file: others once it has been written again."""
    now = path.stat()
    return now.st_ino, now.st_size, now.st_mtime_ns


def _sound(values: Mapping[str, Any]) -> bool:
    """Whether the fields of a job have the right types."""
    texts = untrusted.are_texts([values["folder"], values["status"]]) and isinstance(values.get("error"), str | None)
    known = values["status"] in states.OF_JOBS and isinstance(values.get("summary", {}), dict)
    numbers = all(isinstance(values[key], int | float | None) for key in ("objective", "seconds"))
    return texts and known and numbers and untrusted.are_texts(values["overrides"])


@cache
def _warn_once(message: str) -> None:
    """Warns only once of each fault: the sweep reads the records again whenever a job ends."""
    _log.warning("%s", message)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it cannot be read."""
    try:
        values = untrusted.read_json(path)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _grid(folder: Path) -> list[Job]:
    """The jobs of a grid, as those that have not begun; empty for another sweep."""
    try:
        return _read_grid(folder / GRID, _stamp(folder / GRID))
    except (OSError, ValueError):
        return []


@lru_cache(maxsize=1)
def _read_grid(path: Path, stamp: tuple[int, int, int]) -> list[Job]:
    """The grid in a file with this stamp, read once: each job of a sweep needs it several times."""
    grid = untrusted.read_json(path)
    return [*map(_not_begun, grid)] if isinstance(grid, list) and all(map(untrusted.are_texts, grid)) else []


def varying(folder: Path) -> set[str]:
    """The keys with several values in a grid; empty for another sweep."""
    values: dict[str, set[str]] = {}
    for override in (each for job in _grid(folder) for each in job.overrides):
        key, _, value = override.lstrip("+").partition("=")
        values.setdefault(key.rpartition("@")[2], set()).add(value)
    return {key for key, found in values.items() if len(found) > 1}


def size(folder: Path) -> int:
    """The number of a grid's jobs; 0 for another sweep."""
    return len(_grid(folder))


def total(folder: Path) -> int:
    """The number of a grid's jobs or of a search's trials; 0 if unknown."""
    noted = read_json(folder / TOTAL).get("jobs")
    return noted if isinstance(noted, int) else 0


def _not_begun(overrides: list[str]) -> Job:
    seed = next((each.removeprefix("seed=") for each in overrides if each.startswith("seed=")), "")
    return Job(overrides, int(seed) if re.fullmatch("[0-9]{1,18}", seed) else None, states.NOT_BEGUN, None, "")


def changed(folder: Path) -> int | None:
    """When a record of a sweep was last written, in nanoseconds since 1970; None where there are none."""
    try:
        return (folder / "jobs").stat().st_mtime_ns
    except OSError:
        return None


def finished(folder: Path) -> list[Path]:
    """The run folders of a sweep's finished jobs that are below the folder with `sweeps`."""
    found = (run_folder(folder, job.folder) for row in read(folder) for job in row.finished)
    return [each for each in found if each is not None]


def run_folder(sweep: Path, noted: str) -> Path | None:
    """The folder of a job's run, below the folder with `sweeps`; None if it is not there. A record has its path
    (`noted`) from where the user typed the command, so that only its last parts are those from there.
    """
    place, parts = sweep.parent.parent, [part for part in Path(noted).parts if part not in ("/", "..")]
    paths = (place.joinpath(*parts[i:]) for i in range(len(parts)))
    return next((path for path in paths if os.path.isdir(path)), None)
