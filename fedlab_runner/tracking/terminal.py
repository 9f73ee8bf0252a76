"""The live view of a run: a progress bar on a terminal, else a log line now and then.

That a lost terminal cannot stop a run is the work of `fedlab_runner.utils.streams`.
"""

import logging
import math
import multiprocessing
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich import box, get_console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from fedlab_runner.core.metric_names import COUNT_PREFIX
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.utils.sweep_job import NAME as SWEEP

_log = logging.getLogger(__name__)

LATE_KEY = "late"  # the number of arrived updates that began in an earlier round; computed here
# The metrics of a round that the view shows, as far as there is room: key, label, format.
SHOWN_METRICS = (
    ("test/accuracy", "accuracy", "{:.2%}"),
    ("late/in_flight", "in flight", "{:.0f}"),
    (LATE_KEY, "late", "{:.0f}"),
    ("train/loss", "loss", "{:.3f}"),
)
LOG_SECONDS = 5.0  # the shortest time between two log lines


class Console:
    """Follows one run. `progress`: whether to draw a live bar; None: on a terminal, in the main process."""

    def __init__(self, run_id: str, rounds: int, progress: bool | None) -> None:
        self._run_id = run_id
        self._rounds = rounds
        self._console = get_console()  # log lines are written to it too, above the bar
        if progress is None:
            progress = self._console.is_terminal and multiprocessing.current_process().name == "MainProcess"
        self._live = progress
        self._bar: Progress | None = None
        self._latest: Row = {}
        self._began = 0.0
        self._first = 0
        self._logged = -math.inf

    def start(self, latest: Row, round: int) -> None:
        """Begins after `round` (-1: before the first evaluation); `latest` has the last value of each metric."""
        self._latest = dict(latest)
        self._began = time.monotonic()
        self._first = max(round, 0)
        if round > 0:
            _log.info("%s goes on after round %d of %d", self._run_id, round, self._rounds)
        if self._live:
            self._bar = Progress(
                TextColumn("[bold]round[/] {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=None, table_column=Column(ratio=1)),  # fills the rest of the line
                _Latest(self._latest),
                _Speed(),
                TimeRemainingColumn(compact=True),
                console=self._console,
                refresh_per_second=4,
                expand=True,
            )
            self._bar.add_task("", total=self._rounds, completed=self._first)
            self._bar.start()

    def log(self, row: Row) -> None:
        """Shows one round."""
        self._latest.update(row)
        if "late/arrived" in row:
            self._latest[LATE_KEY] = row["late/arrived"] - row.get(f"{COUNT_PREFIX}0", 0)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=row["round"])
        elif not self._live and SHOWN_METRICS[0][0] in row:
            self._line(row["round"])

    def stop(self) -> None:
        """Removes the bar; may be called again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def table(self, summary: Mapping[str, Any]) -> None:
        """Shows the summary and the metrics of the last round as a table; in a sweep, which has its own, as a line."""
        self.stop()
        if os.environ.get(SWEEP):
            _log.info("%s is finished: %s %s", self._run_id, summary.get("rule"), _show(summary.get("objective")))
            return
        table = Table(title=f"[bold]{self._run_id}[/]", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("metric")
        table.add_column("value", justify="right")
        numbers = {key: value for key, value in summary.items() if not isinstance(value, Mapping | list | str)}
        if "objective" in numbers:
            name = f"{summary['rule']} of {summary['metric']}" if "rule" in summary else "objective"
            table.add_row(name, _show(numbers.pop("objective")), style="bold green", end_section=True)
        for key, value in numbers.items():
            table.add_row(key, _show(value))
        table.add_section()
        for key, value in summary.get("final", {}).items():
            if key.count("/") < 2:  # not one row for each class or client
                table.add_row(key, _show(value))
        self._console.print(table)
        done, seconds = self._latest.get("round", 0) - self._first, time.monotonic() - self._began
        if done > 0:
            self._console.print(f"{done} rounds in {timedelta(seconds=round(seconds))}", highlight=False)

    def _line(self, round: int) -> None:
        now = time.monotonic()
        if now - self._logged < LOG_SECONDS and round not in (0, self._rounds):
            return
        self._logged = now
        done, seconds = round - self._first, now - self._began
        parts = _parts(self._latest)
        if done > 0 and seconds > 0:
            parts.append(_rate(done / seconds))
            if round < self._rounds:
                parts.append(f"{timedelta(seconds=math.ceil((self._rounds - round) * seconds / done))} left")
        # The jobs of a sweep may run side by side and write to one terminal or file.
        name = f"{self._run_id} " if os.environ.get(SWEEP) else ""
        _log.info("%sround %d/%d: %s", name, round, self._rounds, ", ".join(parts))


class _Latest(ProgressColumn):
    """The newest values of the shown metrics, as many as leave room for the bar."""

    def __init__(self, latest: Row) -> None:
        super().__init__()
        self._values = latest

    def render(self, task: Task) -> Text:
        parts = _parts(self._values)
        room = get_console().width - 42
        while len(parts) > 1 and len("  ".join(parts)) > room:
            parts.pop()
        return Text("  ".join(parts), style="cyan", no_wrap=True)


class _Speed(ProgressColumn):
    """The speed of the run."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("- rounds/s", style="magenta", no_wrap=True)
        return Text(_rate(speed), style="magenta", no_wrap=True)


def _rate(speed: float) -> str:
    """A speed as rounds a second, or as seconds a round below one round a second."""
    return f"{speed:.1f} rounds/s" if speed >= 1 else f"{1 / speed:.1f} s/round"


def _parts(values: Mapping[str, Any]) -> list[str]:
    return [f"{label} {form.format(values[key])}" for key, label, form in SHOWN_METRICS if key in values]


def _show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        if value.is_integer():
            return f"{value:.0f}"
        return f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.2g}"
    return str(value)
