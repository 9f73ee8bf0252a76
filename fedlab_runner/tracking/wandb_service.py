"""What is asked of W&B itself, of which there is one in a process, beside any run."""

from collections.abc import Callable
from contextlib import suppress


def server() -> str:
    """The address that runs are sent to."""
    import wandb

    return str(wandb.setup(wandb.Settings(silent=True)).settings.base_url)


class _Messages:
    """What W&B would print on the terminal, which is silent: its warnings and errors go to `tell`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None:
        self._tell(_plain(message))

    def error(self, message: str) -> None:
        self._tell(_plain(message))


def listen(tell: Callable[[str], None] | None) -> None:
    """Has W&B's messages of this process told, or nobody: a server that refuses for good stops the upload and is
    mentioned nowhere else.
    """
    import wandb

    wandb.termsetup(wandb.Settings(silent=True), None if tell is None else _Messages(tell))


def _plain(message: str) -> str:
    """A message of W&B in one line, without its name and full stop."""
    return " ".join(message.split()).removeprefix("wandb: ").removeprefix("WARNING ").rstrip(".")


def teardown() -> None:
    """Ends W&B's process. One that has ended otherwise is forgotten: else that is said at length when Python ends."""
    import wandb

    with suppress(SystemExit):  # with the exit code of that process
        wandb.teardown()


def line(error: Exception) -> str:
    """The last line of a message: W&B puts the cause there."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else type(error).__name__
