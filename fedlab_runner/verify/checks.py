"""The checks of a bundle that need no training: hashes, tables, summaries, names."""

import csv
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from fedlab_runner.config.run_id import run_id_of
from fedlab_runner.experiment import provenance
from fedlab_runner.report import bundle
from fedlab_runner.report.folders import FoundRuns
from fedlab_runner.report.runs import Run
from fedlab_runner.tracking.jsonl import clean
from fedlab_runner.tracking.recorder import SUMMARY
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.errors import UserError
from fedlab_runner.verify import configs

MAX_SHOWN = 3  # faults that a check names
SHOWN_OF_CELL, SHOWN_BEFORE = 80, 20  # characters of a cell of a table: in all, and before the first difference
ROUNDING = 1e-9  # relative tolerance, because the last digits of a mean depend on the versions of libraries
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")  # a line of the manifest: SHA-256 and name


class About(NamedTuple):
    """The content of `bundle.json`."""

    experiment: str | None
    targets: Sequence[float]
    runs: Sequence[str]
    made: str  # the program that made the bundle, in words


class Check(NamedTuple):
    """The outcome of a check: `words` if it holds or has nothing that can be checked here, else its faults."""

    name: str
    words: str
    faults: Sequence[str] = ()
    made: bool = True


def about(folder: Path) -> About:
    """Reads `bundle.json`. Raises UserError for another format."""
    try:
        content = untrusted.read_json(folder / bundle.ABOUT)
    except untrusted.Unreadable as fault:
        raise UserError(f"{bundle.ABOUT} {fault}") from None
    if not isinstance(content, dict) or content.get("format") != bundle.FORMAT:
        raise UserError(f"{bundle.ABOUT} has another format than {bundle.FORMAT}, which this version reads")
    experiment, targets, runs = (content.get(key) for key in ("experiment", "targets", "runs"))
    numbers = [each for each in targets if type(each) in (int, float)] if isinstance(targets, list) else None
    if not (isinstance(experiment, str | None) and numbers == targets and untrusted.are_texts(runs)):
        raise UserError(f"{bundle.ABOUT} is not as fedlab-report writes it")
    made = content.get("made")
    version, commit = (made.get(key) for key in ("fedlab_runner", "commit")) if isinstance(made, dict) else ("?", None)
    told = f", commit {provenance.short_commit(commit)}" if isinstance(commit, str) and commit else ""
    return About(experiment, numbers or [], runs, f"fedlab_runner {version}{told}")


def digest_of_manifest(folder: Path) -> str:
    """The SHA-256 of the manifest, which identifies everything in the bundle and which a paper can print."""
    return hashlib.sha256((folder / bundle.MANIFEST).read_bytes()).hexdigest()


def hashes(folder: Path) -> Check:
    """Checks that the manifest lists each file with its SHA-256, and that each listed file exists."""
    try:
        lines = untrusted.read_bytes(folder / bundle.MANIFEST).decode().splitlines()
    except (untrusted.Unreadable, UnicodeDecodeError):
        return Check("hashes", "", [f"{bundle.MANIFEST} cannot be read"])
    listed = {found[2]: found[1] for line in lines if (found := _LINE.fullmatch(line))}
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    free = {bundle.MANIFEST, bundle.CRATE}
    faults = [f"{name} is listed but missing" for name in sorted(listed.keys() - there.keys())]
    faults += [f"{name} is not listed" for name in sorted(there.keys() - listed.keys() - free)]
    for name in sorted(listed.keys() & there.keys()):
        if hashlib.sha256(there[name].read_bytes()).hexdigest() != listed[name]:
            faults.append(f"{name} is not as it was when the bundle was made")
    if len(listed) != len(lines):
        faults.append(f"{bundle.MANIFEST} has lines that list no file")
    return Check("hashes", f"{count_of(len(listed), 'file')} as in {bundle.MANIFEST}", faults)


def tables(folder: Path, found: FoundRuns, told: About) -> Check:
    """Checks that each table equals the table made of the metrics now."""
    try:
        ours = bundle.tables(found, told.experiment, told.targets)
    except UserError as error:
        return Check("tables", "", [str(error)])
    there = {path.name for path in (folder / bundle.TABLES).glob("*.csv")}
    faults = [f"{name} is missing" for name in sorted(ours.keys() - there)]
    faults += [f"{name} does not follow from the metrics" for name in sorted(there - ours.keys())]
    for name in sorted(ours.keys() & there):
        theirs = untrusted.read_bytes(folder / bundle.TABLES / name).decode(errors="replace")
        faults += [f"{name}{fault}" for fault in _table_faults(theirs, ours[name])]
    return Check("tables", f"{', '.join(sorted(ours))} follow from the metrics", faults)


def summaries(found: FoundRuns, told: About) -> Check:
    """Checks that the runs are those of `bundle.json`, that their rows are whole, and that summaries follow from
    rows.
    """
    runs = {run.name: run for run in found.runs}
    faults = [f"{folder}: {fault}" for folder, fault in found.unreadable.items()]
    faults += [f"{name} is in {bundle.ABOUT} but missing" for name in sorted(set(told.runs) - runs.keys())]
    faults += [f"{name} is not in {bundle.ABOUT}" for name in sorted(runs.keys() - set(told.runs))]
    faults += [f"{run.name}: {run.status}" for run in found.runs if run.damaged]
    checked = 0
    for run in found.runs:
        if run.finished and (run.folder / SUMMARY).is_file():
            checked += 1
            faults += [f"{run.name}: {fault}" for fault in _summary_faults(run)]
    words = f"{checked} of {count_of(len(runs), 'run')} {'is' if checked == 1 else 'are'} finished, "
    return Check("summaries", f"{words}{'its result follows' if checked == 1 else 'their results follow'}", faults)


def names(found: FoundRuns) -> Check:
    """Checks that the id in each summary is that of the run's config, so that the numbers belong to this config."""
    faults, fine, unknown = [], 0, list[str]()
    for run in found.runs:
        try:
            told = untrusted.read_json(run.folder / SUMMARY).get("run_id")
            name = run_id_of(configs.fingerprint(run.folder))
        except FileNotFoundError:  # not finished
            continue
        except (UserError, AttributeError, untrusted.Unreadable) as error:
            unknown.append(f"{run.name} ({error})")
            continue
        fine += told == name
        if told != name:
            faults.append(f"{run.name}: its config is that of {name}, its summary of {told}")
    more = f"; cannot be read here: {_first(unknown)}" if unknown else ""
    words = f"{count_of(fine, 'run')} with the summary of their config{more}"
    return Check("configs", words, faults, made=bool(fine or faults or not unknown))


def _summary_faults(run: Run) -> Iterator[str]:
    """The values of a summary that do not follow from the rows."""
    summary, e = untrusted.read_json(run.folder / SUMMARY), run.evaluation
    ended = summary.get("rounds")
    rows = [row for row in run.rows if type(ended) is int and row["round"] <= ended]
    if not rows:
        yield f"{SUMMARY} names no round"
        return
    ours = clean(
        summarise(rows, run.metric, run.rule, e.get("last", 5), e.get("every", 1), rows[-1]["round"], e.get("target"))
    )
    for key, value in ours.items():
        if not _same(summary.get(key), value):
            yield f"{key} in {SUMMARY} does not follow from its metrics"


def _same(theirs: Any, ours: Any) -> bool:
    """Whether two values are the same, numbers up to rounding."""
    if isinstance(ours, Mapping):
        alike = isinstance(theirs, Mapping) and theirs.keys() == ours.keys()
        return alike and all(_same(theirs[key], ours[key]) for key in ours)
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return math.isclose(theirs, ours, rel_tol=ROUNDING)
    return bool(theirs == ours)


def _table_faults(theirs: str, ours: str) -> Iterator[str]:
    """The first cells in which two tables differ."""
    try:
        there = list(csv.reader(io.StringIO(theirs)))
    except csv.Error:
        yield " is not a table"
        return
    here = list(csv.reader(io.StringIO(ours)))
    header = here[0] if here else []
    nothing: list[str] = []
    for number, (old, new) in enumerate(zip_longest(there, here, fillvalue=nothing), 1):
        for i, (one, other) in enumerate(zip_longest(old, new, fillvalue="")):
            if one != other and not _close(one, other):
                column = header[i] if i < len(header) else str(i + 1)
                yield f", line {number}, {column}: {_shown(one, other)} there, {_shown(other, one)} follows"
                return


def _shown(cell: str, other: str) -> str:
    """The part of a cell in which it first differs from the other; an ellipsis stands for what is left out."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(cell, other, strict=False)))
    begin = max(0, alike - SHOWN_BEFORE) if len(cell) > SHOWN_OF_CELL else 0
    part = cell[begin : begin + SHOWN_OF_CELL]
    return ("…" if begin else "") + part + ("…" if begin + len(part) < len(cell) else "") or "nothing"


def _close(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=ROUNDING)
    except ValueError:
        return False


def _first(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - MAX_SHOWN} more" if len(lines) > MAX_SHOWN else ""
    return "; ".join(lines[:MAX_SHOWN]) + more


def report(check: Check, show: Callable[[str], object]) -> bool | None:
    """Shows a check in one line, or each of its first faults in one; returns whether it holds, None if it was not
    made.
    """
    if not check.faults:
        show(f"{check.name:<12}{check.words}")
        return True if check.made else None
    for fault in check.faults[:MAX_SHOWN]:
        show(f"{check.name:<12}WRONG: {fault}")
    if (left := len(check.faults) - MAX_SHOWN) > 0:
        show(f"{check.name:<12}WRONG: {left} more")
    return False
