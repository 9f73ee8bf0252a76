"""Records a run: `metrics.jsonl`, `timings.jsonl`, `summary.json`, a W&B run, a view on the terminal."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedlab_runner.tracking.ending import ending
from fedlab_runner.tracking.jsonl import JsonLines, Row, clean
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.logger import Logger
from fedlab_runner.tracking.terminal import Console
from fedlab_runner.tracking.trackers import open_tracker
from fedlab_runner.utils.errors import Pruned
from fedlab_runner.utils.files import short_path, write_text_atomically

# Files of a run's folder.
METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
SUMMARY = "summary.json"
DIGEST = "metrics_sha256"  # key of the summary: the SHA-256 of metrics.jsonl


class Recorder:
    """Records one run; a context manager that closes everything, and marks the W&B run as failed on an exception.

    Each round is a line in two files. `metrics.jsonl` has the numbers that are a function of the config, so that two
    runs of one config have equal bytes; `timings.jsonl` has the others. A non-finite number is null in the files and
    NaN in `rows`. W&B and the terminal show copies and cannot stop a run.
    """

    def __init__(
        self,
        folder: Path,
        logger: Logger,
        *,
        run_id: str,
        config: dict[str, Any],
        rounds: int,
        label: Label,
        commit: str | None,
        tracked_as: str | None = None,
        show_summary: bool = True,
        hold: Callable[[], None] = lambda: None,
    ) -> None:
        """`tracked_as` is the run's id in W&B and its like (None: `run_id`). `sync` first calls `hold`, which raises
        where the folder no longer belongs to this run.
        """
        self._folder, self._hold = folder, hold
        self._metrics = JsonLines(folder / METRICS)
        self._timings = JsonLines(folder / TIMINGS)
        shown = tracked_as or run_id
        self._tracker = open_tracker(logger, run_id=shown, config=clean(config), label=label, commit=commit)
        self._show_summary = show_summary
        self._console = Console(run_id, rounds, logger.progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._console.stop()
        self._metrics.close()
        self._timings.close()
        if isinstance(error, Pruned):
            self._tracker.summary({"pruned": str(error)})
        self._tracker.finish(exit_code=0 if kind in (None, Pruned) else 1)

    def start(self, round: int) -> None:
        """Opens the files to continue after `round` (-1: from nothing); later rows are cut off.

        Raises UserError where `metrics.jsonl` lacks one of the rounds 0 to `round`.
        """
        self._metrics.open(round)
        self._timings.open(round)
        self._metrics.require(round)
        history, latest = self._history(), Row()
        self._tracker.start(history)
        for row in history:
            latest |= row
        self._console.start(latest, round)

    def log(self, round: int, metrics: dict[str, float], timings: dict[str, float]) -> None:
        """Records the next round; `metrics` must be a function of the config, `timings` need not."""
        assert round == len(self._metrics.rows), f"round {round} after {len(self._metrics.rows)} rounds"
        row = self._metrics.append(round, metrics) | self._timings.append(round, timings)
        self._tracker.log(row)
        self._console.log(row)

    def table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Shows a table in W&B. Call this at each start of the run, which replaces W&B's older files of the run."""
        self._tracker.table(name, columns, clean(rows))

    def image(self, name: str, path: Path) -> None:
        """Shows a picture in W&B. Call this at each start of the run, which replaces W&B's older files of the run."""
        self._tracker.image(name, path)

    def model(self, files: Sequence[Path]) -> None:
        """Gives W&B the file of the final weights and the files that describe them."""
        self._tracker.model(files)

    def sync(self) -> None:
        """Forces the files to disk, because a checkpoint needs its rounds there. Writes damaged files again."""
        self._hold()
        self._metrics.sync()
        self._timings.sync()

    def find_damage(self, round: int, digest: str | None) -> str | None:
        """Why the run cannot continue after `round`, whose rows had this digest; None where it can."""
        return self._metrics.find_damage(round, digest)

    def digest(self, round: int | None = None) -> str:
        """The SHA-256 of `metrics.jsonl`, whole or up to a round."""
        return self._metrics.digest(round)

    def rows(self) -> list[Row]:
        """The rows of `metrics.jsonl`, which the caller must not change."""
        return self._metrics.rows

    def finish(self, summary: dict[str, Any]) -> None:
        """Shows the summary in W&B, closes the run there, writes `summary.json`, and shows the summary on the terminal.

        `summary.json` marks the run as finished, so the recorder writes it last. If the run is killed before that, the
        same command continues the run, and its copy in W&B too.
        """
        self.sync()
        self._metrics.verify()
        summary = clean(summary)
        rows = ("at_best", "final")  # W&B has these values itself
        self._tracker.summary({key: value for key, value in summary.items() if key not in rows})
        self._tracker.finish(exit_code=0)
        write_summary(self._folder, with_digest(summary, self.digest()))
        if self._show_summary:
            self._console.show(ending(summary, short_path(self._folder), self._console.seconds))

    def _history(self) -> list[Row]:
        """The rows with their timings, where these are known."""
        timings = {row["round"]: row for row in self._timings.rows}
        return [row | timings.get(row["round"], {}) for row in self._metrics.rows]


def with_digest(summary: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """The content of a summary's file: the summary with the SHA-256 of its rows."""
    return {**clean(summary), DIGEST: digest}


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes `summary.json`, in the order given."""
    write_text_atomically(folder / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")
