"""The `logger` config group."""

from dataclasses import dataclass

from fedlab_runner.utils.validate import above, one_of

MODES = ("online", "offline", "disabled")


@dataclass(frozen=True)
class Logger:
    """How a run shows itself in W&B and on the terminal; its own files are written whatever stands here.

    dir: the W&B folder that all runs share; W&B itself insists on the last part being `wandb`.
    init_timeout, finish_timeout: seconds that an online server may take before the run goes on without it.
    progress: whether the terminal shows a live bar; None: when it is one.
    save_model: whether the run leaves its final weights in its folder and, as an artifact, in W&B.
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
