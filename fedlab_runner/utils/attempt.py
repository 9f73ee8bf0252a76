"""Notes in the run's folder which part of the run is working, so that the next attempt reports where this one died.

`next_start` says what the next attempt does after an error: it continues from a checkpoint, or it begins again.
"""

import faulthandler
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import open_to_read, write_atomically

_log = logging.getLogger("fedlab_runner")

NOTE_FILE = ".attempt"  # in the run's folder
STACK_FILE = "crash.txt"  # in the run's folder: Python's stack at a fatal signal
NOTE_BYTES = 128  # the length of the note; if a fatal signal leaves time, Python's fault handler writes behind it
MAX_STACK_BYTES = 2**20  # of a stack that is read
# The texts of a note, and of the first line that Python's fault handler writes.
_NOTE = re.compile(r"process \d{1,10} on [\w.-]{1,60} in [a-z ]{1,30}(\d{1,12} \([a-z ]{1,30}\))?", re.ASCII)
_FATAL = re.compile(rb"\AFatal Python error: ([A-Za-z -]{1,40})\n")
_SIGNALS = {  # by the fault handler's words
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


_place = _Place()  # of this process
_running: list["Attempt"] = []  # at most one attempt
_checkpoints: Callable[[], Sequence[int]] | None = None  # gives the rounds of those in the last attempt's folder


def at(part: str, round: int | None = None) -> None:
    """Notes that the run enters a part, in small letters, of a round, counted from 1; None: the same round."""
    global _place
    _place = _Place(part, _place.round if round is None else round)
    for attempt in _running:
        attempt.write()


def place() -> str:
    """The part of the run that is working, in words."""
    return str(_place)


def next_start() -> str:
    """What the same command will do after an error of the present run, or of the last one, in words."""
    if _checkpoints is None:  # the command is still starting, and does not know its folder
        return "the same command continues from the last checkpoint, if there is one"
    return "the same command " + ("continues from the last checkpoint" if _checkpoints() else "begins again")


class Attempt:
    """Context manager around a run in `folder`: keeps the note, and removes it when the program itself ends the run.

    `checkpoints` returns the rounds of the checkpoints that the folder has now.

    A note at the start means that the last attempt was killed; one log line says where. No number depends on the note:
    the run ignores a note that it cannot read, continues without one that it cannot write, and follows no link.
    """

    def __init__(self, folder: Path, checkpoints: Callable[[], Sequence[int]]) -> None:
        self._folder, self._path, self._checkpoints = folder, folder / NOTE_FILE, checkpoints
        self._descriptor: int | None = None
        self._handles_faults = False
        self._host = re.sub(r"[^\w.-]", "-", socket.gethostname()[:40], flags=re.ASCII)

    def __enter__(self) -> Self:
        global _place, _checkpoints
        _place, _checkpoints = _Place(), self._checkpoints
        self._report_last()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)  # a link, not its target
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o666)
            os.lseek(self._descriptor, NOTE_BYTES, os.SEEK_SET)
            if not faulthandler.is_enabled():  # else another program has its own handler
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
        """Writes the part of the run that is working into the note."""
        if self._descriptor is not None:
            note = f"process {os.getpid()} on {self._host} in {_place}".ljust(NOTE_BYTES - 1) + "\n"
            with suppress(OSError):
                os.pwrite(self._descriptor, note.encode(), 0)

    def leave(self) -> None:
        """Stops writing; the note stays."""
        if self._handles_faults:
            faulthandler.disable()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._handles_faults = None, False
        _running.clear()

    def _report_last(self) -> None:
        """Warns in one line where the last attempt was killed, if it was."""
        content = _read(self._path)
        note, stack = content[:NOTE_BYTES].decode(errors="replace").strip(), content[NOTE_BYTES:]
        if not _NOTE.fullmatch(note):
            return
        if not (fatal := _FATAL.match(stack)):
            _log.warning(
                "the last attempt left no reason for its end (killed, a second Ctrl-C, or out of memory?): %s", note
            )
            return
        kept = self._folder / STACK_FILE
        with suppress(OSError):
            write_atomically(kept, lambda file: file.write(stack))
        name = _SIGNALS.get(fatal[1].replace(b"-", b" "), "a fatal signal")
        _log.warning("the last attempt was killed by %s: %s; its stack is in %s", name, note, kept)


def _read(path: Path) -> bytes:
    """The note and the stack behind it; empty where there is no plain file."""
    try:
        with open_to_read(path, follow_links=False) as file:
            return file.read(NOTE_BYTES + MAX_STACK_BYTES)
    except (OSError, UserError):
        return b""


def _in_fork() -> None:
    """A forked worker does not write the note: its parent reports how the worker ends."""
    for attempt in list(_running):
        attempt.leave()


os.register_at_fork(after_in_child=_in_fork)
