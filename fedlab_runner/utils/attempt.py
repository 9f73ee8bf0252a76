"""A note in a run's folder of what the run is at, so that the next attempt can say where the last one was killed."""

import faulthandler
import logging
import os
import re
import socket
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from fedlab_runner.utils.files import write_atomically

_log = logging.getLogger("fedlab_runner")

FILE = ".attempt"
STACK = "crash.txt"  # what Python was at when a fatal signal came
LENGTH = 128  # bytes of the note; behind it Python's fault handler writes, where a signal leaves it the time
MOST_STACK = 2**20  # bytes of what it may have written
_NOTE = re.compile(r"process \d{1,10} on [\w.-]{1,60} in [a-z ]{1,30}(\d{1,12} \([a-z ]{1,30}\))?", re.ASCII)
_FATAL = re.compile(rb"\AFatal Python error: ([A-Za-z -]{1,40})\n")
_SIGNALS = {
    b"Segmentation fault": "SIGSEGV",
    b"Aborted": "SIGABRT",
    b"Bus error": "SIGBUS",
    b"Floating point exception": "SIGFPE",
    b"Illegal instruction": "SIGILL",
}


class _Place(NamedTuple):
    part: str = "preparation"
    round: int | None = None  # counted from 1

    def __str__(self) -> str:
        return self.part if self.round is None else f"round {self.round} ({self.part})"


_place = _Place()  # where this process is
_running: list["Attempt"] = []  # at most one


def at(part: str, round: int | None = None) -> None:
    """The run is in this part now, in small letters, of this round, counted from 1 (None: the same as before)."""
    global _place
    _place = _Place(part, _place.round if round is None else round)
    for attempt in _running:
        attempt.write()


def place() -> str:
    """The part that the run is in, in words."""
    return str(_place)


class Attempt:
    """Context manager around a run in `folder`: keeps the note, removes it at an end that the program knows of.

    Says first, in one line, where the last attempt was if it left a note: it was killed. No number depends on the note:
    what cannot be read is passed over, what cannot be written is left out, and no link is followed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / FILE
        self._descriptor: int | None = None
        self._handles_faults = False
        self._host = re.sub(r"[^\w.-]", "-", socket.gethostname()[:40], flags=re.ASCII)

    def __enter__(self) -> Self:
        global _place
        _place = _Place()
        self._tell()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)  # and not what a link there leads to
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
            os.lseek(self._descriptor, LENGTH, os.SEEK_SET)
            if not faulthandler.is_enabled():  # else somebody else wants to know
                faulthandler.enable(self._descriptor)
                self._handles_faults = True
        _running.append(self)
        self.write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Notes where the run is."""
        if self._descriptor is not None:
            note = f"process {os.getpid()} on {self._host} in {_place}".ljust(LENGTH - 1) + "\n"
            with suppress(OSError):
                os.pwrite(self._descriptor, note.encode(), 0)

    def leave(self) -> None:
        """Writes no more; the note stays."""
        if self._handles_faults:
            faulthandler.disable()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._handles_faults = None, False
        _running.clear()

    def _tell(self) -> None:
        """What became of the last attempt, if it did not come to its end."""
        content = _read(self._path)
        note, stack = content[:LENGTH].decode(errors="replace").strip(), content[LENGTH:]
        if not _NOTE.fullmatch(note):
            return
        if not (fatal := _FATAL.match(stack)):
            _log.warning("the last attempt ended without a word (killed, or out of memory?): %s", note)
            return
        kept = self._folder / STACK
        with suppress(OSError):
            write_atomically(kept, lambda file: file.write(stack))
        name = _SIGNALS.get(fatal[1].replace(b"-", b" "), "a fatal signal")
        _log.warning("the last attempt was killed by %s: %s; its stack is in %s", name, note, kept)


def _read(path: Path) -> bytes:
    """What a plain file holds, up to a length; nothing where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, LENGTH + MOST_STACK, 0) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _in_fork() -> None:
    """A worker's end is its parent's to tell."""
    for attempt in list(_running):
        attempt.leave()


os.register_at_fork(after_in_child=_in_fork)
