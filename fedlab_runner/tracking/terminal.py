"""The live view of a run: a progress bar where one can be drawn, else a log line now and then.

`fedlab_runner.utils.streams` sees to it that a lost terminal cannot stop a run.
"""

import logging
import math
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rich import get_console
from rich.console import RenderableType
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from fedlab_runner.core.metric_names import COUNT_PREFIX
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.log_lines import FILE_ONLY
from fedlab_runner.utils.durations import duration
from fedlab_runner.utils.sweep_job import IN_SWEEP, JOB

_log = logging.getLogger(__name__)

LATE_KEY = "late"  # the number of arrived updates that began in an earlier round; computed here
# The metrics of a round that the view shows if they fit: key, label, format.
SHOWN_METRICS = (
    ("test/accuracy", "accuracy", "{:.2%}"),
    ("late/in_flight", "in flight", "{:.0f}"),
    (LATE_KEY, "late", "{:.0f}"),
    ("train/loss", "loss", "{:.4g}"),
)
LOG_SECONDS, SWEEP_LOG_SECONDS = 5.0, 60.0  # the shortest time between two log lines; in a sweep
ECHO = 3  # columns for ^C and the cursor behind it
RATE_ROUNDS = 20  # last rounds over which the speed of a run is measured


class Console:
    """Follows one run. `progress`: whether to draw a live bar where it can be drawn; None: in the main process."""

    def __init__(self, run_id: str, rounds: int, progress: bool | None) -> None:
        self._run_id = run_id
        self._rounds = rounds
        self._console = get_console()  # log lines are written to it too, above the bar
        if progress is None:
            progress = not self._console.is_jupyter and multiprocessing.current_process().name == "MainProcess"
        self._live = progress and (self._console.is_interactive or self._console.is_jupyter)
        self._bar: Progress | None = None
        self._latest: Row = {}
        self._first = 0
        self._job = os.environ.get(JOB, "")  # the place in a sweep, such as `job 7/18`
        self._speed = _Speed()
        self._logged = -math.inf

    def start(self, latest: Row, round: int) -> None:
        """Begins after `round` (-1: before the first evaluation); `latest` has the last value of each metric."""
        self._latest = dict(latest)
        self._first = max(round, 0)
        self._speed.begin(self._first)
        if self._job:  # a short job has a single line, at its end
            self._logged = time.monotonic()
        if round > 0:
            _log.info("%s continues after round %d of %d", self._run_id, round, self._rounds)
        if self._live:
            self._bar = _Bar(
                TextColumn(
                    f"{self._job}[bold]{' ' * bool(self._job)}round[/] {{task.completed:.0f}}/{{task.total:.0f}}"
                ),
                BarColumn(bar_width=None, table_column=Column(ratio=1)),  # fills the rest of the line
                _Latest(self._latest, len(self._job)),
                _Pace(self._speed),
                console=self._console,
                transient=True,  # only the last line stays on the screen
                refresh_per_second=4,
                expand=True,
            )
            self._bar.add_task("", total=self._rounds, completed=self._first)
            self._bar.start()

    def log(self, row: Row) -> None:
        """Shows one round."""
        if row["round"] > 0:
            self._speed.add(row["round"])
        else:  # round 0 is the evaluation of the first model
            self._speed.begin(0)
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

    @property
    def seconds(self) -> float | None:
        """The seconds from the start of the run to its last round; None where unknown."""
        return self._latest.get("time/wall")

    def show(self, lines: Sequence[str]) -> None:
        """Prints the lines about the end of a run, and logs them to its file. In a sweep it prints nothing, as the
        sweep has a line for each job.
        """
        self.stop()
        for line in lines:
            _log.info("%s", line, extra=FILE_ONLY)
            if not self._job:
                self._console.print(Text(line), soft_wrap=True, highlight=False)

    def _line(self, round: int) -> None:
        now = time.monotonic()
        pause = SWEEP_LOG_SECONDS if self._job else LOG_SECONDS
        if now - self._logged < pause and (self._job or round not in (0, self._rounds)):
            return
        self._logged = now
        parts = [*_parts(self._latest), *self._speed.words(self._rounds - round)]
        name = f"{self._job} " if self._job else ""
        _log.info("%sround %d/%d: %s", name, round, self._rounds, ", ".join(parts), extra=IN_SWEEP)


class _Speed:
    """The speed of a run over its last rounds. The first round after a start, which measures, forks and compiles,
    counts only while there is no other.
    """

    def __init__(self) -> None:
        self._ends: deque[tuple[int, float]] = deque(maxlen=RATE_ROUNDS + 1)  # rounds, and when each ended
        self._warm = False

    def begin(self, round: int) -> None:
        """Notes that rounds will follow after this one."""
        self._ends.clear()
        self._ends.append((round, time.monotonic()))
        self._warm = False

    def add(self, round: int) -> None:
        """Notes that a round has ended."""
        self._ends.append((round, time.monotonic()))
        if len(self._ends) > 2 and not self._warm:
            self._ends.popleft()
            self._warm = True

    def words(self, left: int) -> list[str]:
        """The speed, and the time that `left` more rounds take; empty before the end of a round."""
        (first, began), (last, now) = self._ends[0], self._ends[-1]
        if last == first or now <= began:
            return []
        speed = (last - first) / (now - began)
        return [_rate(speed), *([f"{duration(left / speed)} left"] if left else [])]


class _Bar(Progress):
    """A bar that ends before the edge of the terminal: an echoed ^C stays on its line, which is then removed whole."""

    def get_renderable(self) -> RenderableType:
        return Constrain(super().get_renderable(), max(1, get_console().width - ECHO))


class _Latest(ProgressColumn):
    """The newest values of the shown metrics, as many as leave room for the bar and for `more` characters."""

    def __init__(self, latest: Row, more: int = 0) -> None:
        super().__init__()
        self._values = latest
        self._more = more

    def render(self, task: Task) -> Text:
        parts = _parts(self._values)
        room = get_console().width - ECHO - 46 - self._more
        while len(parts) > 1 and len("  ".join(parts)) > room:
            parts.pop()
        return Text("  ".join(parts) + " ", style="cyan", no_wrap=True)  # and the space between columns


class _Pace(ProgressColumn):
    """The speed of the run and the time left."""

    def __init__(self, speed: _Speed) -> None:
        super().__init__()
        self._run = speed

    def render(self, task: Task) -> Text:
        words = self._run.words(int((task.total or 0) - task.completed))
        return Text("  ".join(words), style="magenta", no_wrap=True)


def _rate(speed: float) -> str:
    """A speed as rounds a second, or as seconds a round below one round a second."""
    return f"{speed:.1f} rounds/s" if speed >= 1 else f"{1 / speed:.1f} s/round"


def _parts(values: Mapping[str, Any]) -> list[str]:
    return [f"{label} {form.format(values[key])}" for key, label, form in SHOWN_METRICS if key in values]
