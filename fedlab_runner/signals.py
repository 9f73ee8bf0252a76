"""Signals that stop a run: raised where the program is, and once more at the end of a round."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedlab_runner.errors import Interrupted

_asked: list[int] = []  # the signal that has come, in this process
_waiting: list[None] = []  # one for each open `deferred`


@contextmanager
def raised() -> Iterator[None]:
    """SIGTERM and SIGINT raise Interrupted in the main thread; a second one acts as it did before: stop at once.

    Only where nobody else decided what they do: a launcher's handlers and the ignored SIGINT of a background job stay.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        before = {number: handler for number, handler in before.items() if handler in defaults}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        restore()
        _asked.append(number)
        if not _waiting:
            raise Interrupted(number)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()
        if before:
            _asked.clear()


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes meanwhile is raised at the end: the compiler loses exceptions in its callbacks."""
    _waiting.append(None)
    try:
        yield
    finally:
        _waiting.pop()
    if not _waiting:
        check()


def check() -> None:
    """Raises Interrupted if a signal has come whose exception was lost: destructors and some callbacks of libraries,
    the compiler's among them, print an exception and go on.
    """
    if _asked:
        raise Interrupted(_asked[-1])
