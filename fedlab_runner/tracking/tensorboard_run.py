"""A run in TensorBoard: a folder of event files. Each start of the run writes them from the first round on."""

import json
import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedlab_runner.core.metric_names import charted
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.logger import TensorboardLogger
from fedlab_runner.tracking.service_calls import ServiceCalls, heard, need
from fedlab_runner.utils import escaping
from fedlab_runner.utils.files import shell_path, short_path

_log = logging.getLogger(__name__)


class TensorboardTracker:
    """TensorBoard's copy of a run, in the folder `<dir>/<run id>`."""

    def __init__(
        self, logger: TensorboardLogger, *, run_id: str, config: dict[str, Any], label: Label, commit: str | None
    ) -> None:
        need("tensorboard", "tensorboard")
        self._folder = Path(logger.dir).expanduser().absolute() / run_id
        self._about = {"name": label.name or run_id, "tags": list(label.tags), "commit": commit} | dict(label.config)
        self._config = config
        self._writer: Any = None
        self._last = 0
        self._try = ServiceCalls(f"TensorBoard in {short_path(self._folder)}")
        self._hooks = ExitStack()

    def start(self, history: Iterable[Row]) -> None:
        """Opens new event files with `history`, and removes those of earlier starts of the run."""
        self._hooks.enter_context(heard(threading, "excepthook", self._has_failed))
        self._writer = self._try(self._open, "could not be started")
        if self._writer is not None:
            for title, value in (("about", self._about), ("config", self._config)):
                self._text(title, escaping.fenced(json.dumps(value, indent=2, default=str).splitlines(), "json"))
            for row in history:
                self.log(row)

    def _open(self) -> Any:
        from torch.utils.tensorboard.writer import SummaryWriter

        for older in self._folder.glob("events.out.tfevents.*"):
            older.unlink()
        _log.info("TensorBoard: `tensorboard --logdir %s` shows all runs", shell_path(self._folder.parent))
        return SummaryWriter(str(self._folder))

    def _has_failed(self, failed: threading.ExceptHookArgs) -> bool:
        """Tells of the thread that writes the files; whether it is that thread which has failed."""
        if not type(failed.thread).__module__.startswith("tensorboard.") or not isinstance(failed.exc_value, Exception):
            return False
        self._try.tell(failed.exc_value, "did not take a round")
        return True

    def log(self, row: Row) -> None:
        """Writes a round."""
        self._last = row["round"]
        if self._writer is not None:
            self._try(lambda: self._scalars(row), "did not take a round")

    def _scalars(self, row: Row) -> None:
        for key, value in charted(row).items():
            if key != "round":
                self._writer.add_scalar(key, value, row["round"])

    def table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Writes a table as text."""
        cells = [[escaping.markdown("" if cell is None else str(cell)) for cell in line] for line in (columns, *rows)]
        cells.insert(1, ["---"] * len(columns))
        self._text(name, "\n".join("| " + " | ".join(line) + " |" for line in cells))

    def image(self, name: str, path: Path) -> None:
        """Writes a picture."""
        if self._writer is not None:
            self._try(lambda: self._picture(name, path), f"did not take {name}")

    def _picture(self, name: str, path: Path) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as picture:
            self._writer.add_image(name, np.asarray(picture.convert("RGB")), self._last, dataformats="HWC")

    def model(self, files: Sequence[Path]) -> None:
        """Writes nothing: the run's folder has the weights."""

    def summary(self, values: dict[str, Any]) -> None:
        """Writes the summary's numbers as scalars and the whole summary as text."""
        self._text("summary", escaping.fenced(json.dumps(values, indent=2, default=str).splitlines(), "json"))
        numbers = {f"summary/{key}": value for key, value in values.items() if isinstance(value, int | float)}
        if self._writer is not None:
            self._try(lambda: self._scalars({"round": self._last, **numbers}), "did not take the summary")

    def finish(self, exit_code: int) -> None:
        """Closes the event files."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._try(writer.close, "did not close its files")
        self._hooks.close()

    def _text(self, name: str, text: str) -> None:
        if self._writer is not None:
            self._try(lambda: self._writer.add_text(name, text, self._last), f"did not take {name}")
