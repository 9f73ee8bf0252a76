"""The records of a sweep's jobs, one file a job, read as files that a stranger may have written."""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from fedlab_runner.utils import checksummed_json, untrusted
from fedlab_runner.utils.escaping import visible

GRID = "grid.json"  # in the sweep's folder: the overrides of each job, for a grid

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """How one job of a sweep ended."""

    overrides: list[str]
    seed: int | None
    status: str  # finished, pruned, failed or interrupted
    objective: float | None
    folder: str
    summary: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def setting(self) -> tuple[str, ...]:
        """The job's overrides without the seed."""
        return tuple(sorted(each for each in self.overrides if each.partition("=")[0] != "seed"))


@dataclass(frozen=True)
class Row:
    """All jobs of one setting."""

    setting: tuple[str, ...]
    jobs: Sequence[Job]

    def values(self, key: str | None = None) -> list[float]:
        """The finite objectives (or values of the summary) of the finished jobs."""
        found = [job.summary.get(key) if key else job.objective for job in self.jobs if job.status == "finished"]
        return [value for value in found if isinstance(value, int | float) and math.isfinite(value)]

    @property
    def failed(self) -> list[Job]:
        """The jobs without a result."""
        return [job for job in self.jobs if job.status not in ("finished", "pruned")]

    @property
    def remarks(self) -> str:
        """The number of seeds that do not count, with the reasons."""
        pruned = [job for job in self.jobs if job.status == "pruned"]
        parts = [f"{len(self.failed)}: {self.failed[0].error}"] if self.failed else []
        return "; ".join(parts + ([f"{len(pruned)} {str(pruned[0].error).partition(':')[0]}"] if pruned else []))


_FIELDS = {each.name for each in fields(Job)}


def read(folder: Path) -> list[Row]:
    """A row for each setting, in the order of their names."""
    found: dict[tuple[str, ...], list[Job]] = {}
    for path in sorted((folder / "jobs").glob("*.json")):
        if values := read_job(path):
            job = Job(**values)
            found.setdefault(job.setting, []).append(job)
    return [Row(setting, found[setting]) for setting in sorted(found, key=natural)]


def natural(setting: Iterable[str]) -> list[Any]:
    """A sort key that puts delay.std=5 before delay.std=20."""
    parts = re.split(r"0*([0-9]+)", " ".join(setting))
    return [
        (len(part), part) if i % 2 else part for i, part in enumerate(parts)
    ]  # compared as texts: int() has a limit of digits


def read_job(path: Path) -> dict[str, Any]:
    """The fields of the Job in a file; empty, with a warning, where the file is damaged."""
    try:
        values = checksummed_json.read(path)
        if values.keys() != _FIELDS or not _sound(values):
            raise checksummed_json.Damaged("is damaged")
    except OSError:
        return {}
    except checksummed_json.Damaged as fault:
        _warn_once(f"{visible(str(path))} {fault} and does not count: the command of the sweep writes it anew")
        return {}
    return values


def _sound(values: Mapping[str, Any]) -> bool:
    """Whether the fields of a job have the right types."""
    texts = untrusted.are_texts([values["folder"], values["status"]]) and isinstance(values.get("error"), str | None)
    numbers = isinstance(values["objective"], int | float | None) and isinstance(values.get("summary", {}), dict)
    return texts and numbers and untrusted.are_texts(values["overrides"])


@cache
def _warn_once(message: str) -> None:
    """Warns once: the records are read again whenever a job ends."""
    _log.warning("%s", message)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where it cannot be read."""
    try:
        values = untrusted.read_json(path)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def to_come(folder: Path) -> list[list[str]]:
    """The overrides of a grid's jobs without a record: they have not begun, or are at work."""
    try:
        grid = untrusted.read_json(folder / GRID)
    except (OSError, ValueError):
        return []
    if not (isinstance(grid, list) and all(map(untrusted.are_texts, grid))):
        return []
    known = {tuple(sorted(job.overrides)) for row in read(folder) for job in row.jobs}
    return [job for job in grid if tuple(sorted(job)) not in known]


def finished(folder: Path) -> list[Path]:
    """The run folders of a sweep's finished jobs; they lie beside the folder `sweeps`."""
    jobs = [job for row in read(folder) for job in row.jobs if job.status == "finished"]
    return [folder.parent.parent / Path(job.folder).name for job in jobs]
