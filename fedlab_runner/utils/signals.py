"""Signals that stop a run. Each raises an exception in the main thread, and raises it again if it was lost."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedlab_runner.utils.errors import Interrupted

_asked: list[int] = []  # the signals that this process has received
_waiting: list[None] = []  # one entry for each open `deferred`
_lost: list[int] = []  # signals whose exception was lost, until it is raised again
RERAISE_SECONDS = 0.01  # until a lost exception is raised again


def end_silently() -> None:
    """Ctrl-C ends this process, which is a command's own, without a traceback where `raised` does not handle it.

    That is while Python starts and ends, and the second time.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def keep_from_children() -> None:
    """The processes that this thread starts from now on, and theirs, get no Ctrl-C before they are within `raised`:
    they inherit the signals that the thread blocks. This process gets it in another thread.
    """
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def give_to_children() -> None:
    """The end of `keep_from_children`: the processes that this thread starts from now on get Ctrl-C.

    Hydra calls no callback where a sweep fails: `fedlab` calls this then, as a program that runs Hydra must.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def raised() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP raise Interrupted in the main thread; a second signal ends the process at once.

    An import is completed before: C code of torch imports NumPy, would swallow the exception and go on with the half of
    NumPy that it has. Handlers that another program has set stay: a launcher's, the ignored SIGINT of a background job,
    the ignored SIGHUP of nohup.
    """
    before, importing = {}, _imports(sys._getframe())
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        before = {number: handler for number, handler in before.items() if handler in defaults}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        restore()
        if _lost:  # a second signal, while the exception of the first one waits
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        _asked.append(number)
        if _calls(frame, hook) or _imports(frame) > importing:  # an exception raised in there would be lost
            _again(Interrupted(number), stop)
        elif not _waiting:
            raise Interrupted(number)

    def hook(ignored: Any) -> None:
        if not _again(ignored.exc_value, stop):
            show(ignored)

    for number in before:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, before)  # the process that started this one may have left it blocked
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
    """Whether a function is among the callers of a frame."""
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def _imports(frame: FrameType | None) -> int:
    """How many calls of the import system are among the callers of a frame."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        frame = frame.f_back
    return count


def _again(ignored: BaseException | None, handler: Callable[[int, FrameType | None], None]) -> bool:
    """Raises an Interrupted in a moment: Python would lose it here, in a destructor, a weak reference's callback or an
    import. Returns whether the exception is an Interrupted.
    """
    if not isinstance(ignored, Interrupted):
        return False

    def once_more() -> None:
        if _lost:  # cleared where the run has stopped
            _lost.clear()
            os.kill(os.getpid(), ignored.signal)  # a thread gets it that does not block it

    _lost.append(ignored.signal)
    signal.signal(ignored.signal, handler)
    timer = threading.Timer(RERAISE_SECONDS, once_more)
    timer.daemon = True
    timer.start()
    return True


@contextmanager
def deferred() -> Iterator[None]:
    """Raises Interrupted at the end of the block for a signal that comes within the block: torch's compiler loses
    exceptions in its callbacks, and torch.save replaces them by its own.
    """
    _waiting.append(None)
    try:
        yield
    finally:
        _waiting.pop()
    if not _waiting:
        check()


def check() -> None:
    """Raises Interrupted if a signal's exception was lost: destructors and some callbacks of libraries, such as torch's
    compiler, print an exception and continue.
    """
    if _asked:
        _lost.clear()
        raise Interrupted(_asked[-1])


def name(number: int) -> str:
    """The name of a signal, such as SIGSEGV; `signal 99` where it has none."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
