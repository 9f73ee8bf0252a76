"""The table of a sweep: mean and spread over seeds. Each job updates it when it begins and ends."""

import os
import shlex
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedlab_runner.core.metric_names import is_share, shown
from fedlab_runner.sweep import states
from fedlab_runner.sweep.error_kinds import kind
from fedlab_runner.sweep.ranking import best_first, short
from fedlab_runner.sweep.records import Row, read, size, stamps
from fedlab_runner.utils import escaping
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.short_number import short_number

MAX_REASONS = 3  # of failures, below the table on the terminal; table.md has those of all settings
MAX_SHOWN = 40  # settings on the terminal; table.md has all
SETTING_SHARE = 0.4  # of the width of a terminal: the widest column of settings
MAX_KNOWN = 2**17  # statistics that are kept: each job makes the table anew, and changes one row of it
MIN_SECONDS = 0.05  # of processor time; a table that takes less is made whenever a job begins or ends
PAUSE = 20  # times that a table takes, before which no new one of a large sweep is made


@dataclass
class _TablePace:
    """How often this process makes the table of the sweep of its command."""

    seconds: float = 0.0  # of processor time, that the last table took
    made: float = 0.0  # when the last table was made, by the monotonic clock
    behind: bool = False  # whether a job has changed its record since


_paces: dict[Path, _TablePace] = {}  # by the folder of the sweep
os.register_at_fork(after_in_child=_paces.clear)  # a launcher's process, which makes no last table


def refresh(folder: Path) -> list[Row]:
    """Writes table.md and table.csv from the records of the jobs; table.md of a search has its best setting first.

    Several processes may do this at once. Each looks at the records again after writing, so that no job is missing.
    """
    is_search = not size(folder)
    while True:
        before = stamps(folder)
        rows = read(folder)
        write_text_atomically(folder / "table.md", markdown(best_first(rows) if is_search else rows))
        write_text_atomically(folder / "table.csv", csv_text(rows))
        if stamps(folder) == before:
            return rows


def begin(folder: Path) -> None:
    """Says that this process runs the command of a sweep and calls `end`: `refresh_in_turn` may leave out tables."""
    _paces[folder] = _TablePace()


def refresh_in_turn(folder: Path) -> None:
    """Refreshes the table, in the process of the sweep's command at most a twentieth of the time. A process of a
    launcher always does so: nobody knows whether its job is the last one.
    """
    pace = _paces.get(folder, _TablePace())
    pace.behind = pace.seconds > MIN_SECONDS and time.monotonic() < pace.made + PAUSE * pace.seconds
    if not pace.behind:
        began = time.process_time()
        refresh(folder)
        pace.seconds, pace.made = time.process_time() - began, time.monotonic()


def end() -> None:
    """Makes the last table of the command's sweep if the one on disk is behind its records."""
    while _paces:
        folder, pace = _paces.popitem()
        if pace.behind:
            refresh(folder)


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The header and rows of the table, without the overrides that all settings share."""
    shared = set.intersection(*(set(row.setting) for row in rows)) if len(rows) > 1 else set()
    metrics = {job.summary.get("metric") for row in rows for job in row.finished}
    metric = str(metrics.pop() or "") if len(metrics) == 1 else ""  # a search over metrics has numbers without units
    body = []
    for row in rows:
        name = " ".join(each for each in row.setting if each not in shared) or "(defaults)"
        words = [_words(each, metric) for each in _mean_and_std(tuple(row.values()))]
        body.append([name, str(len(row.values())), *words, "; ".join(row.uncounted)])
    return ["setting", "seeds", f"mean {metric}".rstrip(), "std", "not counted"], body


def markdown(rows: Sequence[Row]) -> str:
    """The table of the objective, for people."""
    header, body = cells(rows)
    for row, line in zip(rows, body, strict=True):
        line[-1] = "; ".join(
            f"{each} ({row.reason})" if each.endswith(states.FAILED) else each for each in row.uncounted
        )
    lines = [header, ["---"] + ["---:"] * 3 + ["---"], *([escaping.markdown(cell) for cell in line] for line in body)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def csv_text(rows: Sequence[Row]) -> str:
    """The table for programs, with mean and std of every number of the summaries that all counted seeds have."""
    keys = sorted({key for row in rows for key in set().union(*(job.summary for job in row.jobs)) if row.numbers(key)})
    others = [state for state in states.OF_JOBS if state != states.FINISHED]
    header = ["setting", "seeds", *others, states.NOT_FINITE, "mean", "std"]
    lines: list[Sequence[Any]] = [header + [f"{key} {what}" for key in keys for what in ("mean", "std")]]
    for row in rows:
        columns = [row.values(), *(row.numbers(key) for key in keys)]
        numbers = [each for column in columns for each in _mean_and_std(tuple(column))]
        counts = [len(row.values()), *(len(row.of(state)) for state in others), row.not_finite]
        lines.append([" ".join(row.setting), *counts, *numbers])
    return escaping.csv_text(lines)


def show(folder: Path) -> None:
    """Prints the table, of many settings the best, draws the pictures and prints their paths."""
    import rich
    from rich.table import Column, Table
    from rich.text import Text

    from fedlab_runner.sweep.plots import plot_sweep

    rows = read(folder)
    if all(job.status == states.NOT_BEGUN for row in rows for job in row.jobs):  # refused before its first job
        return
    ranked = not size(folder) or len(rows) > MAX_SHOWN
    some = best_first(rows)[:MAX_SHOWN] if ranked else rows
    header, body = cells(some)
    names = short([line[0] for line in body])
    narrow = max(map(len, names)) > SETTING_SHARE * rich.get_console().width  # then an override a line
    numbers = [Column(each.replace(" ", "\n"), justify="right", no_wrap=True) for each in header[1:4]]
    columns = [Column(header[0], overflow="fold"), *numbers]
    if any(line[4] for line in body):
        columns.append(Column(header[4], overflow="fold"))
    table = Table(*columns, show_lines=narrow and any(" " in name for name in names))
    for name, (_, *others) in zip(map(visible, names), body, strict=True):
        words = [Text(visible(cell)) for cell in others[: len(columns) - 1]]
        table.add_row(Text(name.replace(" ", "\n") if narrow else name), *words)
    rich.print(table)
    if len(rows) > MAX_SHOWN:
        print(f"the best {MAX_SHOWN} of {len(rows)} settings")
    failed = [each[0] for row in rows if (each := row.of(states.FAILED))]
    reasons: dict[str, str] = {}
    for job in failed:
        reasons.setdefault(kind(str(job.error), job.folder), str(job.error))
    for reason in list(reasons.values())[:MAX_REASONS]:
        print(f"failed: {visible(reason)}")
    for path in (folder / "table.md", *plot_sweep(folder)):
        print(visible(os.path.relpath(path)))
    print(f"a page of all results: fedlab-report {shlex.quote(os.path.relpath(folder))}")


def _words(number: float | None, metric: str) -> str:
    """A number of the objective with about four digits, an accuracy in percent."""
    return "" if number is None else shown(number, metric) if is_share(metric) else short_number(number, 4)


@lru_cache(MAX_KNOWN)
def _mean_and_std(values: tuple[float, ...]) -> tuple[float | None, float | None]:
    """The mean (None without values) and the sample standard deviation (None for fewer than two values)."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None
