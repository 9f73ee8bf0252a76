"""Handlers for log lines. They never break a line, so that a user can copy a command from it and search the log."""

import logging
import os
import sys
import time
from io import TextIOWrapper
from pathlib import Path

from rich import get_console
from rich.text import Text

from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.files import open_own
from fedlab_runner.utils.own_modules import is_installed
from fedlab_runner.utils.streams import Forgiving, text_of
from fedlab_runner.utils.sweep_job import NAME

FILE_ONLY = {"file_only": True}  # the `extra` of a record that the terminal does not show
SHOWN = "fedlab_runner", "hydra", "hydra_plugins"  # installed packages whose lines below a warning it shows
_log = logging.getLogger("fedlab_runner")


def log_error_in_file(line: str, exc_info: bool = False) -> str | None:
    """Logs an error, which the caller raises as well, where the log has a file, and returns the file's name. From
    Python without one, handlers would print also what the program catches.
    """
    files = [each.baseFilename for each in logging.root.handlers if isinstance(each, logging.FileHandler)]
    if not files:
        return None
    _log.error("%s", line, exc_info=exc_info, extra=FILE_ONLY)
    return Path(files[0]).name


class LineHandler(logging.Handler):
    """Writes through rich's console, so that lines go above a live bar; only the terminal wraps them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record: time, level from a warning on, message, and the traceback if there is one.

        Of other libraries it writes warnings only. In a sweep it writes warnings and lines about the sweep. The log
        file has the other lines.
        """
        package, low = record.name.partition(".")[0], record.levelno < logging.WARNING
        of_job = low and package == "fedlab_runner" and os.environ.get(NAME) and not hasattr(record, "in_sweep")
        foreign = low and package not in SHOWN and is_installed(record.pathname)
        if hasattr(record, "file_only") or of_job or foreign:
            return
        try:
            line = Text(time.strftime("%H:%M:%S ", time.localtime(record.created)), style="dim")
            if record.levelno >= logging.WARNING:
                line.append(
                    f"{record.levelname.lower()}: ", "bold red" if record.levelno >= logging.ERROR else "yellow"
                )
            line.append("\n".join(map(visible, self.format(record).expandtabs().splitlines())), "not dim")
            get_console().print(line, soft_wrap=True, highlight=False)
        except Exception:  # as other handlers do: a log line must not end a run
            self.handleError(record)


class LogFile(logging.FileHandler):
    """Appends to a file of the run folder. If writing fails, it says so once and drops later lines."""

    def _open(self) -> TextIOWrapper:
        lost: list[OSError] = []

        def tell(error: OSError) -> None:
            if not lost:
                print(f"warning: {self.baseFilename} is cut off ({error.strerror}): the run continues", file=sys.stderr)
            lost.append(error)

        raw = Forgiving(open_own(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND | os.O_CREAT), tell)
        return text_of(raw, "utf-8")
