"""The `logger` config group: where a run is shown. The run always writes its own files."""

import os
from dataclasses import dataclass
from pathlib import Path

from fedlab_runner.utils.sweep_job import sweep_folder
from fedlab_runner.utils.validate import above, one_of

MODES = ("online", "offline", "disabled")  # values of the field `mode`


@dataclass(frozen=True)
class Logger:
    """Shows the run on the terminal alone.

    progress: whether to show a live bar; None: on a terminal only.
    pictures: whether to draw plots/ in the run's folder; None: unless the run is a job of a sweep, where drawing can
    take longer than the run.
    save_model: whether to save the final weights in the run's folder and, as an artifact, in W&B.
    """

    progress: bool | None
    pictures: bool | None
    save_model: bool

    @property
    def draws(self) -> bool:
        """Whether this process's run draws its pictures."""
        return sweep_folder() is None if self.pictures is None else self.pictures

    @property
    def is_shared(self) -> bool:
        """Whether the key `dir` is a folder outside of the working folder, which others may share."""
        folder = os.path.abspath(os.path.expanduser(getattr(self, "dir", "")))
        return not Path(folder).is_relative_to(Path.cwd())


@dataclass(frozen=True)
class WandbLogger(Logger):
    """Shows the run in Weights & Biases too.

    dir: the W&B folder that all runs share; W&B itself requires the last part to be `wandb`.
    group: W&B shows runs of one group together; None: a group holds the seeds of one setting.
    init_timeout, finish_timeout: seconds that W&B's server may take before the run continues without it.
    """

    mode: str
    project: str
    entity: str | None
    group: str | None
    tags: list[str]
    dir: str
    name: str | None
    init_timeout: float
    finish_timeout: float

    def __post_init__(self) -> None:
        if self.mode not in MODES and self.mode == os.environ.get("WANDB_MODE"):  # the default of the key
            choices = ", ".join(MODES)
            raise ValueError(f"mode must be one of {choices}, got WANDB_MODE={self.mode!r} of the environment")
        one_of(MODES, mode=self.mode)
        above(0, init_timeout=self.init_timeout, finish_timeout=self.finish_timeout)
        _check_texts(project=self.project)
        _check_folder(self.dir)


@dataclass(frozen=True)
class TrackioLogger(Logger):
    """Trackio (needs the extra `trackio`): a local database that `trackio show` serves in a browser.

    dir: the folder of the database. group: None: the setting, whose seeds are shown together.
    """

    project: str
    group: str | None
    dir: str

    def __post_init__(self) -> None:
        _check_texts(project=self.project)
        _check_folder(self.dir)


@dataclass(frozen=True)
class TensorboardLogger(Logger):
    """TensorBoard (needs the extra `tensorboard`): event files in a folder of each run below `dir`."""

    dir: str

    def __post_init__(self) -> None:
        _check_folder(self.dir)


def _check_texts(**values: str) -> None:
    for key, value in values.items():
        if not value:
            raise ValueError(f"{key} must be a name, got {value!r}")


def _check_folder(folder: str) -> None:
    if not folder:
        raise ValueError(f"dir must be a folder, got {folder!r}")
