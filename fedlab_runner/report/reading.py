"""Reads the files of one run, which may still be running, or come from a stranger."""

import hashlib
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from fedlab_runner.config.build import bounded
from fedlab_runner.config.hydra_record import EXPERIMENTS
from fedlab_runner.config.run_id import without_volatile
from fedlab_runner.core.metric_names import COUNT_PREFIX
from fedlab_runner.experiment import failure
from fedlab_runner.experiment.provenance import COMMANDS_FILE
from fedlab_runner.experiment.pruner import read_note
from fedlab_runner.report.runs import Run
from fedlab_runner.tracking.jsonl import Row, decode
from fedlab_runner.tracking.recorder import DIGEST, METRICS, SUMMARY
from fedlab_runner.tracking.summary import RULES
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.escaping import short
from fedlab_runner.utils.untrusted import Unreadable

MAX_MAGNITUDE = 1e100  # of a number; a larger one counts as NaN, because its sums and squares could overflow
MAX_ERROR_CHARACTERS = 500  # of the error that ended a run
MAX_EXPERIMENTS = 100  # of a run, that a report knows
_AGE = "[0-9]{1,9}"  # a staleness in a metric's key


def read_run(folder: Path, noted: str | None, refused: str | None) -> Run | None:
    """The run in a folder; None if it has no config yet. Raises Unreadable with the name of the damaged file.

    `noted`: the state of its job in a sweep's record; `refused`: the error there, which counts if the run has no round.
    A run that has begun has its own note of a failure, which its next start removes.
    """
    config = _mapping(folder, "config.yaml") or bounded(_mapping(folder, ".hydra/config.yaml"))
    if not config:
        return None
    hydra = told if isinstance(told := _mapping(folder, ".hydra/hydra.yaml").get("hydra"), dict) else {}
    starts = [start for start in _lines(folder, COMMANDS_FILE, untrusted.parse_json)[0] if isinstance(start, dict)]
    rows, damaged = _rows(folder)
    choices = _choices(hydra)
    asked = [*_lines(folder, EXPERIMENTS, lambda line: line.decode().strip())[0], choices.get("experiment", "")]
    error = failure.read(folder) or (None if rows else refused)
    run = Run(
        folder,
        config,
        choices,
        rows=rows,
        timings=_lines(folder, "timings.jsonl", _numbers)[0],
        commands=_texts(starts, "command") or _started(hydra),
        commits=_texts(starts, "commit"),
        noted=noted,
        error=short(error, MAX_ERROR_CHARACTERS) if error else None,
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
