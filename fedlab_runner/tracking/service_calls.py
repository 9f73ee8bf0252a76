"""Calls into a tracker's package, none of which may stop the run."""

import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from fedlab_runner.utils.errors import UserError

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def need(package: str, logger: str) -> None:
    """UserError where the package of a logger is not installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f'logger={logger} needs an extra: pip install "fedlab-runner[{logger}]"; or choose logger=none')


def last_line(error: Exception) -> str:
    """The last line of an error's message; the error's type where the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")


@contextmanager
def heard(module: ModuleType, hook: str, take: Callable[..., bool]) -> Iterator[None]:
    """Within the block `take` gets the calls of a hook, such as `threading.excepthook`, by which a service tells what
    failed in its threads. The hook gets those for which `take` is false.
    """
    others = getattr(module, hook)

    def hear(*arguments: Any, **named: Any) -> None:
        if not take(*arguments, **named):
            others(*arguments, **named)

    setattr(module, hook, hear)
    try:
        yield
    finally:
        if getattr(module, hook) is hear:  # else somebody has replaced it since
            setattr(module, hook, others)


class ServiceCalls:
    """Tries calls and warns of the first one that fails. `cause` explains an error in one line."""

    def __init__(self, service: str, cause: Callable[[Exception], str] = last_line) -> None:
        self._service, self._cause, self._warned = service, cause, False

    def __call__(self, action: Callable[[], _Result], problem: str) -> _Result | None:
        """The result of `action`; None if it raises."""
        try:
            return action()
        except Exception as error:
            self.tell(error, problem)
            return None

    def tell(self, error: Exception, problem: str) -> None:
        """Warns of an error, if it is the first one."""
        if not self._warned:
            self._warned = True
            told = f"{self._service} {problem} ({self._cause(error)}): the run's own files are not affected"
            _log.warning("%s", told)
