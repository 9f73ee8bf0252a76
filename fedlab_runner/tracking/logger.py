"""The `logger` config group."""

from dataclasses import dataclass

from fedlab_runner.utils.validate import above, one_of

MODES = ("online", "offline", "disabled")


@dataclass(frozen=True)
class Logger:
    """What W&B and the terminal show of a run; the run's own files are always written.

    dir: the W&B folder that all runs share; W&B itself requires the last part to be `wandb`.
    init_timeout, finish_timeout: seconds that W&B's server may take before the run goes on without it.
    progress: whether to show a live bar; None: on a terminal only.
    save_model: whether to save the final weights in the run's folder and, as an artifact, in W&B.
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
    progress: bool | None
    save_model: bool

    def __post_init__(self) -> None:
        one_of(MODES, mode=self.mode)
        above(0, init_timeout=self.init_timeout, finish_timeout=self.finish_timeout)
        if not self.project:
            raise ValueError(f"project must be a name, got {self.project!r}")
        if not self.dir:
            raise ValueError(f"dir must be a folder, got {self.dir!r}")
