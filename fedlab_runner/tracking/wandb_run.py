"""A run in Weights & Biases: a second copy of its numbers, whose failures never stop the run."""

import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedlab_runner.core.metric_names import charted, is_share
from fedlab_runner.tracking import wandb_copies, wandb_file
from fedlab_runner.tracking import wandb_service as service
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.label import Label
from fedlab_runner.tracking.logger import WandbLogger
from fedlab_runner.tracking.metric_direction import lower_is_better
from fedlab_runner.tracking.reachability import Reach
from fedlab_runner.tracking.service_calls import ServiceCalls
from fedlab_runner.utils.files import shell_path, short_path

if TYPE_CHECKING:
    import wandb

_log = logging.getLogger(__name__)
FIRST_ANSWER_SECONDS = 1.0  # how long a run waits for W&B's server before it begins
LAST_ANSWER_SECONDS = 5.0  # how long after its start a run that has ended still waits for the server


class WandbTracker:
    """A W&B run under this run's id, whose history equals the run's files.

    A continued online run sends the rounds that the server lacks. A continued offline run writes into a new file the
    rounds that no uploaded copy has and, when that is closed and whole, removes the copies that were not uploaded.
    """

    def __init__(
        self, logger: WandbLogger, *, run_id: str, config: dict[str, Any], label: Label, commit: str | None
    ) -> None:
        self._logger = logger
        self._run_id = run_id
        self._config = config
        self._label = label
        self._commit = commit
        self._folder = wandb_copies.wandb_folder(Path(logger.dir))
        self._run: wandb.Run | None = None
        self._reach: Reach | None = None  # while the server has not answered
        self._waiting: list[Row] = []  # the rounds until the server answers
        self._continues = False  # whether the run had rounds when it started
        self._older: list[Path] = []  # offline files that the new ones will replace
        self._first = 0  # the first round to be sent
        self._last = 0
        self._rows = 0  # the rounds that W&B took
        self._media: dict[str, Any] = {}
        self._media_names: set[str] = set()
        self._defined: set[str] = set()  # the keys whose summary W&B knows
        self._try = ServiceCalls("W&B", service.line)
        self._incomplete = False  # whether the run has warned that W&B lacks some of it

    def start(self, history: Iterable[Row]) -> None:
        """Opens the run and sends `history`. It does so later if the server has not answered yet, offline if it never
        does.
        """
        if self._logger.mode == "disabled":
            return
        self._waiting = list(history)
        self._continues = bool(self._waiting)
        if self._logger.mode == "online":
            self._reach = self._try(lambda: Reach(service.server()), "does not say where its server is")
        if self._reach is None or self._reach.answers(FIRST_ANSWER_SECONDS):
            self._open()
        else:
            _log.info("W&B's server has not answered yet: the run begins meanwhile")

    def _open(self) -> None:
        """Opens the run and sends the waiting rounds."""
        if self._reach is not None:
            self._reach.stop()
            if self._reach.answers():
                self._run = self._online()
            else:
                _log.warning(
                    "W&B cannot be reached (%s): the run continues with logger.mode=offline", self._reach.reason
                )
            self._reach = None
        if self._run is None:
            self._first = self._try(self._look_at_copies, "has copies that cannot be read") or 0
            self._run = self._try(lambda: self._init("offline"), "could not be started")
        if self._run is None:
            return
        run = self._run
        self._try(lambda: run.define_metric("round"), "did not take the x axis")
        self._try(lambda: run.define_metric("*", step_metric="round"), "did not take the x axis")
        if not run.offline:
            self._first = self._try(lambda: run.starting_step, "did not say where the run stands") or 0
            self._try(
                lambda: service.listen(lambda text: self._warn_incomplete(run, text)), "does not say what it lacks"
            )
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            self.log(row)
        self._say_where(run)

    def _look_at_copies(self) -> int:
        """Finds the copies that the new file will replace; returns the first round that no uploaded copy has.

        `wandb sync` adds the rounds of a copy to those that W&B has of the run. A run that begins anew sends all.
        """
        offline = self._copies("offline-run")
        self._older = [copy for copy in offline if not wandb_copies.is_uploaded(copy, self._run_id)]
        uploaded = [*self._copies("run"), *(copy for copy in offline if copy not in self._older)]
        return wandb_copies.first_missing_round(uploaded, self._run_id) if self._continues else 0

    def _copies(self, kind: Literal["run", "offline-run"]) -> list[Path]:
        return wandb_copies.copies(self._folder, self._run_id, kind)

    def _settle(self, last: bool) -> None:
        """Opens a waiting run if the server has answered or its time is over. `last` says that the run has ended."""
        if self._reach is None:
            return
        if (
            self._reach.answers(LAST_ANSWER_SECONDS if last else 0.0)
            or last
            or self._reach.seconds > self._logger.init_timeout
        ):
            self._open()

    def log(self, row: Row) -> None:
        """Sends a round, with the tables and images since the last round."""
        self._last = row["round"]
        if self._reach is not None:
            self._waiting.append(row)
            return self._settle(last=False)
        if self._run is None or self._last < self._first:
            return
        # NaN becomes null, as in metrics.jsonl: W&B's summary of best values stays NaN after one.
        numbers = {key: None if value != value else value for key, value in charted(row).items()}
        run, media, self._media = self._run, self._media, {}
        for key in (numbers.keys() | media.keys()) - self._defined:
            self._define(run, key)
        # Without commit=True a row stays open until the next one, so that the last tables and images can join the last
        # row.
        problem = f"did not take {', '.join(media)} of round {self._last}"
        taken = bool(media) and self._try(lambda: run.log(numbers | media, step=self._last) is None, problem)
        if taken or self._try(lambda: run.log(numbers, step=self._last) is None, "did not take a round"):
            self._rows += 1

    def _define(self, run: "wandb.Run", key: str) -> None:
        """Adds a metric's best value, if it has one, to W&B's summary, and hides the charts of pictures' sizes."""
        self._defined.add(key)
        best = "min" if key.endswith("loss") else "max" if is_share(key) and not lower_is_better(key) else None
        if key in self._media_names:
            self._try(lambda: run.define_metric(f"{key}.*", hidden=True), f"did not hide the size of {key}")
        elif best is not None:
            summary = f"last,{best}"
            self._try(lambda: run.define_metric(key, step_metric="round", summary=summary), "did not take a rule")

    def table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Adds a table to the next round, or to the last round at the end."""
        if self._run is not None or self._reach is not None:
            import wandb

            # Mixed types: a cell may be a number in one row and empty or a word in another.
            self._add(name, lambda: wandb.Table(columns=list(columns), data=rows, allow_mixed_types=True))

    def image(self, name: str, path: Path) -> None:
        """Adds a picture to the next round, or to the last round at the end."""
        if self._run is not None or self._reach is not None:
            import wandb

            self._add(name, lambda: wandb.Image(str(path)))

    def model(self, files: Sequence[Path]) -> None:
        """Adds the files of the weights and of their description as the artifact `model-<run id>`."""
        self._settle(last=True)
        if self._run is not None:
            run = self._run
            self._try(lambda: self._log_model(run, files), "did not take the model")

    def summary(self, values: dict[str, Any]) -> None:
        """Adds the run's summary, as `summary.<key>`, to W&B's own summary of last values."""
        self._settle(last=True)
        if self._run is not None:
            run = self._run
            self._try(lambda: run.summary.update({"summary": values}), "did not take the summary")

    def finish(self, exit_code: int) -> None:
        """Closes the run; `exit_code` other than 0 marks it as failed. May be called again."""
        self._settle(last=True)
        if self._run is None:
            return
        run, self._run = self._run, None
        if self._media:
            self._try(lambda: run.log(self._media, step=self._last), "did not take a table or picture")
        try:
            run.finish(exit_code=exit_code)
        except Exception as error:
            ended = service.has_ended(error)
            self._warn_incomplete(run, f"it could not finish: {service.line(error)}", cut=ended)
            if ended:
                self._try(service.teardown, "did not stop")
            return
        finally:
            if not run.offline:
                self._try(lambda: service.listen(None), "still sends messages")
        file = wandb_copies.file_of(_copy(run), self._run_id)
        if not file.is_file():
            _log.warning("W&B lacks the run: %s was removed; the run's own files are not affected", _copy(run))
        elif run.offline and not self._try(lambda: wandb_file.is_whole(file, self._rows), "cannot be read back"):
            kept = "; older copies stay" if self._older else ""
            self._warn_incomplete(run, f"{short_path(file)} ends early, as on a full disk{kept}", cut=True)
        elif run.offline:
            for older in self._older:
                shutil.rmtree(older, ignore_errors=True)

    def _online(self) -> "wandb.Run | None":
        """The run on the server; None, with one warning, where there is no account or no server."""
        before = self._copies("run")
        try:
            return self._init("online")
        except Exception as error:
            _log.warning("W&B cannot be reached (%s): the run continues with logger.mode=offline", service.line(error))
        # W&B's process still holds the run's id and leaves an empty folder: both would hinder the offline run.
        self._try(service.teardown, "did not stop")
        for left in set(self._copies("run")) - set(before):
            shutil.rmtree(left, ignore_errors=True)
        return None

    def _init(self, mode: Literal["online", "offline"]) -> "wandb.Run":
        """Opens a run that is independent of other W&B runs of this process."""
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        service.set_up()  # before `init`, which would ask for a key
        service.list_packages_once()
        settings = wandb.Settings(
            silent=True,
            console="off",  # the terminal's output, with its live bar, is not uploaded
            save_code=False,
            disable_git=True,  # the caller gives the commit; no patch of the working tree is saved
            git_commit=self._commit,
            root_dir=str(self._folder.parent),
            init_timeout=self._logger.init_timeout,
            finish_timeout=self._logger.finish_timeout,
            finish_timeout_raises=True,
        )
        return wandb.init(
            mode=mode,
            id=self._run_id,
            name=self._logger.name or self._label.name or self._run_id,
            resume="allow",
            reinit="create_new",
            project=self._logger.project,
            entity=self._logger.entity,
            group=self._logger.group or self._label.group,
            job_type=self._label.method or None,
            tags=[*self._logger.tags, *self._label.tags],
            config={**self._config, **self._label.config},
            settings=settings,
        )

    def _log_model(self, run: "wandb.Run", files: Sequence[Path]) -> None:
        import wandb

        artifact = wandb.Artifact(f"model-{self._run_id}", type="model", metadata={"round": self._last})
        for path in files:
            artifact.add_file(str(path))
        run.log_artifact(artifact)

    def _say_where(self, run: "wandb.Run") -> None:
        if run.offline:
            folder, segment = shell_path(self._folder), shell_path(_copy(run))
            _log.info(
                "W&B is offline: `wandb leet %s` shows all runs, `wandb sync %s` uploads this one", folder, segment
            )
        else:
            _log.info("W&B is online: %s", run.url)

    def _warn_incomplete(self, run: "wandb.Run", reason: str, cut: bool = False) -> None:
        """Warns once that W&B lacks some of the run. `wandb sync` needs a flag for an online run, and does not help if
        W&B's file is `cut`.
        """
        if not self._incomplete:
            self._incomplete = True
            command = f"wandb sync {'' if run.offline else '--include-online '}{shell_path(_copy(run))}"
            told = "" if cut else f", `{command}` uploads it later"
            _log.warning("W&B lacks some of the run (%s): the run's own files have it%s", reason, told)

    def _add(self, name: str, make: Callable[[], Any]) -> None:
        value = self._try(make, f"did not take {name}")
        if value is not None:
            self._media[name] = value
            self._media_names.add(name)


def _copy(run: "wandb.Run") -> Path:
    return Path(run.settings.sync_dir)
