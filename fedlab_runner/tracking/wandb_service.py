"""Calls to W&B's service, of which a process has one for all its runs."""

from collections.abc import Callable
from contextlib import suppress


def server() -> str:
    """The address of the server to which W&B sends runs."""
    import wandb

    return str(wandb.setup(wandb.Settings(silent=True)).settings.base_url)


class _Messages:
    """Passes W&B's warnings and errors, which are not printed, to `tell`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None:
        self._tell(_plain(message))

    def error(self, message: str) -> None:
        self._tell(_plain(message))


def listen(tell: Callable[[str], None] | None) -> None:
    """Sends W&B's messages of this process to `tell` (None: to nobody).

    A server that refuses an upload for good is reported in such a message only.
    """
    import wandb

    wandb.termsetup(wandb.Settings(silent=True), None if tell is None else _Messages(tell))


def _plain(message: str) -> str:
    """A message of W&B in one line, without its name and full stop."""
    return " ".join(message.split()).removeprefix("wandb: ").removeprefix("WARNING ").rstrip(".")


def teardown() -> None:
    """Ends W&B's process. A process that has died is forgotten, else Python reports it at length when it ends."""
    import wandb

    with suppress(SystemExit):  # with the exit code of that process
        wandb.teardown()


def has_ended(error: Exception) -> bool:
    """Whether an error says that W&B's process has ended: to write to it fails, or what it was asked stays open."""
    from wandb.sdk.mailbox import HandleAbandonedError

    return isinstance(error, ConnectionError | HandleAbandonedError)


def line(error: Exception) -> str:
    """The last line of a message: W&B puts the cause there."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else type(error).__name__
