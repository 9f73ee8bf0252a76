"""Signals that stop a run: raised where the program is, and again where that exception was lost."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedlab_runner.utils.errors import Interrupted

_asked: list[int] = []  # the signal that has come, in this process
_waiting: list[None] = []  # one for each open `deferred`
_lost: list[int] = []  # whose exception was lost, until it is raised again
AGAIN_SECONDS = 0.01  # until a signal whose exception was lost is raised once more


@contextmanager
def raised() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP raise Interrupted in the main thread; a second one acts as before: stop at once.

    Only where nobody else decided what they do: a launcher's handlers stay, and so do the ignored SIGINT of a
    background job and the ignored SIGHUP of nohup.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        before = {number: handler for number, handler in before.items() if handler in defaults}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        restore()
        _asked.append(number)
        if _calls(frame, hook):  # an exception of it would be lost for good
            _again(Interrupted(number), stop)
        elif not _waiting:
            raise Interrupted(number)

    def hook(ignored: Any) -> None:
        if not _again(ignored.exc_value, stop):
            show(ignored)

    for number in before:
        signal.signal(number, stop)
    show = sys.unraisablehook
    if before:
        sys.unraisablehook = hook
    try:
        yield
    finally:
        if before:
            sys.unraisablehook = show
            _asked.clear()
            _lost.clear()
        restore()


def _calls(frame: FrameType | None, function: Callable[..., object]) -> bool:
    """Whether a function has been called and has not returned, by the frame where the program is."""
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def _again(ignored: BaseException | None, handler: Callable[[int, FrameType | None], None]) -> bool:
    """Whether this exception, which Python is about to print and forget because a destructor or a weak reference's
    callback was running, is ours; it is raised again as soon as that has ended.
    """
    if not isinstance(ignored, Interrupted):
        return False

    def once_more() -> None:
        if _lost:  # not if the run has stopped by now
            _lost.clear()
            signal.pthread_kill(main.ident or 0, ignored.signal)

    main = threading.main_thread()
    _lost.append(ignored.signal)
    signal.signal(ignored.signal, handler)
    timer = threading.Timer(AGAIN_SECONDS, once_more)
    timer.daemon = True
    timer.start()
    return True


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes meanwhile is raised at the end: the compiler loses exceptions in its callbacks, and
    torch.save puts its own in their place.
    """
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
        _lost.clear()
        raise Interrupted(_asked[-1])


def name(number: int) -> str:
    """SIGSEGV and the like; `signal 99` for one that has no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
