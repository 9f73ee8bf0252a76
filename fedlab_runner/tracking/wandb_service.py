"""Calls to W&B's service. All runs of a process share one service."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from fedlab_runner.tracking.service_calls import last_line


def server() -> str:
    """The address of the server to which W&B sends runs."""
    return str(set_up().settings.base_url)


def set_up() -> Any:
    """W&B's settings and process for all runs of this one. The process may have to start."""
    import wandb

    _let_a_start_fail()
    return wandb.setup(wandb.Settings(silent=True))


@cache
def _let_a_start_fail() -> None:
    """Where its process does not start, W&B 0.31 waits for ever: to report that, it takes a lock that it holds."""
    from wandb.sdk import wandb_setup

    if isinstance(getattr(wandb_setup, "_singleton_lock", None), type(threading.Lock())):
        again: Any = threading.RLock()  # which its holder may take again
        wandb_setup._singleton_lock = again


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

    Only such a message reports that a server refuses an upload permanently.
    """
    import wandb

    wandb.termsetup(wandb.Settings(silent=True), None if tell is None else _Messages(tell))


def _plain(message: str) -> str:
    """A message of W&B in one line, without its name and full stop."""
    return " ".join(message.split()).removeprefix("wandb: ").removeprefix("WARNING ").rstrip(".")


@cache
def list_packages_once() -> None:
    """Has W&B list the installed packages once for all runs of this process: it reads each one's description, which
    takes a tenth of a short job of a sweep.
    """
    from wandb import util

    if hasattr(util, "working_set"):
        util.working_set = cache(lambda listed=util.working_set: list(listed()))


def teardown() -> None:
    """Ends W&B's process. Forgets a process that has died, which Python would report at length at its own exit."""
    import wandb

    with suppress(SystemExit):  # with the exit code of that process
        wandb.teardown()


def has_ended(error: Exception) -> bool:
    """Whether an error says that W&B's process has ended: a write to it failed, or it left a request open."""
    from wandb.sdk.mailbox import HandleAbandonedError

    return isinstance(error, ConnectionError | HandleAbandonedError)


def line(error: Exception) -> str:
    """The cause in one line: what is wrong with a setting, or the last line of W&B's message."""
    return fault(error) or last_line(error)


def fault(error: Exception) -> str | None:
    """What is wrong with a setting, and the variable of the environment that it comes from; None for other errors."""
    from pydantic import ValidationError  # W&B needs it

    if not isinstance(error, ValidationError):
        return None
    first = error.errors(include_url=False)[0]
    place, reason = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ").rstrip(".")
    if (name := _variable(place)) is None:
        return f"{place}: {reason}" if place else reason
    return f"{name}={os.environ[name]!r} in the environment cannot be used: {reason}; unset {name}"


def _variable(setting: str) -> str | None:
    """The variable of the environment from which W&B cannot take a setting; None without one."""
    import wandb
    from pydantic import ValidationError

    for name in sorted(os.environ):
        try:
            wandb.Settings().update_from_env_vars({name: os.environ[name]})
        except Exception as error:  # W&B refuses some values with errors of its own
            if isinstance(error, ValidationError) and error.errors()[0]["loc"] == (setting,):
                return name
    return None
