"""The tracker of a run keeps a second copy of its numbers elsewhere. The class of the logger chooses it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedlab_runner.tracking import tensorboard_run, trackio_run, wandb_run
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.logger import Logger, TensorboardLogger, TrackioLogger, WandbLogger


class Tracker(Protocol):
    """Takes copies of what a Recorder writes. A failing tracker warns once and never stops the run."""

    def start(self, history: Iterable[Row]) -> None:
        """Begins with the rounds that the run's files have."""

    def log(self, row: Row) -> None:
        """Takes a round."""

    def table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Takes a table."""

    def image(self, name: str, path: Path) -> None:
        """Takes a picture, a PNG."""

    def model(self, files: Sequence[Path]) -> None:
        """Takes the files of the final weights and of their description."""

    def summary(self, values: dict[str, Any]) -> None:
        """Takes the run's summary."""

    def finish(self, exit_code: int) -> None:
        """Ends. An `exit_code` other than 0 means that the run has failed. May be called again."""


class NoTracker:
    """Takes nothing."""

    def start(self, history: Iterable[Row]) -> None: ...
    def log(self, row: Row) -> None: ...
    def table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None: ...
    def image(self, name: str, path: Path) -> None: ...
    def model(self, files: Sequence[Path]) -> None: ...
    def summary(self, values: dict[str, Any]) -> None: ...
    def finish(self, exit_code: int) -> None: ...


def open_tracker(logger: Logger, *, run_id: str, config: dict[str, Any], label: Label, commit: str | None) -> Tracker:
    """The tracker for a run's logger; raises UserError where the logger's package is not installed."""
    match logger:
        case WandbLogger():
            return wandb_run.WandbTracker(logger, run_id=run_id, config=config, label=label, commit=commit)
        case TrackioLogger():
            return trackio_run.TrackioTracker(logger, run_id=run_id, config=config, label=label, commit=commit)
        case TensorboardLogger():
            return tensorboard_run.TensorboardTracker(logger, run_id=run_id, config=config, label=label, commit=commit)
    return NoTracker()
