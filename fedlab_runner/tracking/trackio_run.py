"""A run in Trackio: a local database, in which each start of the run replaces what the run had there."""

import contextlib
import importlib
import io
import logging
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedlab_runner.core.metric_names import charted
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.logger import TrackioLogger
from fedlab_runner.tracking.service_calls import ServiceCalls, heard, need
from fedlab_runner.utils.files import shell_path, short_path

_log = logging.getLogger(__name__)


class TrackioTracker:
    """Trackio's copy of a run, under the run's name for people and its id."""

    def __init__(
        self, logger: TrackioLogger, *, run_id: str, config: dict[str, Any], label: Label, commit: str | None
    ) -> None:
        need("trackio", "trackio")
        self._logger = logger
        self._run_id, self._name = run_id, f"{label.name} ({run_id})" if label.name else run_id
        self._group = logger.group or label.group
        self._config = {**config, **label.config, "tags": list(label.tags), "commit": commit, "run_id": run_id}
        self._run: Any = None
        self._last = 0
        self._media: dict[str, Any] = {}
        self._folder = Path(logger.dir).expanduser().absolute()
        self._warnings: list[Warning] = []
        self._try = ServiceCalls(f"Trackio in {short_path(self._folder)}")
        self._hooks = contextlib.ExitStack()

    def start(self, history: Iterable[Row]) -> None:
        """Opens the run with `history`; it replaces an earlier run of this id, whatever its name for people was."""
        # Python shows a warning once a process, unless told otherwise, and this may be the process's second run.
        warnings.filterwarnings("always", module="trackio")
        self._hooks.enter_context(heard(warnings, "showwarning", self._keep))
        self._run = self._silently(self._open, "could not be started")
        if self._run is not None:
            project = shlex.quote(self._logger.project)
            command = f"TRACKIO_DIR={shell_path(self._folder)} trackio show --project {project}"
            _log.info("Trackio: `%s` shows all runs", command)
        for row in history if self._run is not None else ():
            self.log(row)

    def _open(self) -> Any:
        os.environ["TRACKIO_DIR"] = str(self._folder)  # read once, when Trackio is imported
        trackio: Any = importlib.import_module("trackio")  # the type check must not depend on an extra

        with contextlib.suppress(ValueError):  # there is no such project yet
            for run in trackio.Api().runs(self._logger.project):
                if run.name == self._run_id or run.name.endswith(f"({self._run_id})"):
                    run.delete()
        return trackio.init(
            project=self._logger.project,
            name=self._name,
            group=self._group,
            config=self._config,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, row: Row) -> None:
        """Writes a round, with the tables and pictures since the last round."""
        self._last = row["round"]
        if self._run is not None:
            numbers = {key: value for key, value in charted(row).items() if key != "round"}
            self._send(numbers | self._taken())

    def table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Adds a table to the next round, or to the last round at the end."""
        self._add(name, lambda trackio: trackio.Table(columns=columns, data=rows))

    def image(self, name: str, path: Path) -> None:
        """Adds a picture to the next round, or to the last round at the end."""
        self._add(name, lambda trackio: trackio.Image(str(path)))

    def model(self, files: Sequence[Path]) -> None:
        """Writes nothing: the run's folder has the weights."""

    def summary(self, values: dict[str, Any]) -> None:
        """Adds the summary's numbers, as `summary/<key>`, to the last round."""
        numbers = {f"summary/{key}": value for key, value in values.items() if isinstance(value, int | float)}
        if self._run is not None:
            self._send(numbers | self._taken())

    def finish(self, exit_code: int) -> None:
        """Closes the run."""
        if self._run is not None and self._media:
            self._send(self._taken())
        run, self._run = self._run, None
        if run is not None:
            self._silently(lambda: _close(run), "did not close the run")
        self._hooks.close()

    def _send(self, values: dict[str, Any]) -> None:
        run, step = self._run, self._last
        self._silently(lambda: run.log(values, step=step), "did not take a round")

    def _silently(self, action: Callable[[], Any], problem: str) -> Any:
        """Keeps Trackio's lines from the terminal, and tells what failed then or since the last call."""

        def quiet() -> Any:
            with contextlib.redirect_stdout(io.StringIO()):
                return action()

        result = self._try(quiet, problem)
        for warning in self._warnings:
            self._try.tell(warning, "did not take a round")
        self._warnings.clear()
        return result

    def _keep(self, warning: Warning, category: type[Warning], file: str, *_: Any) -> bool:
        """Keeps a warning of Trackio, by which alone it says that it could not write; whether it is one."""
        if Path(file).parent.name != "trackio":
            return False
        self._warnings.append(warning)
        return True

    def _taken(self) -> dict[str, Any]:
        media, self._media = self._media, {}
        return media

    def _add(self, name: str, make: Any) -> None:
        if self._run is not None:
            value = self._try(lambda: make(importlib.import_module("trackio")), f"did not take {name}")
            self._media |= {} if value is None else {name: value}


def _close(run: Any) -> None:
    """Closes a run, which Trackio would close again, with a line on the terminal, when the process ends."""
    trackio: Any = importlib.import_module("trackio")
    trackio.context_vars.current_run.set(run)
    trackio.finish()
