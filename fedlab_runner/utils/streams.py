"""The terminal cannot stop a run: not a pipe that is closed, not a full disk behind it, not a window that is gone."""

import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_NAMES = {1: "standard output", 2: "standard error"}
_lost: dict[int, OSError] = {}  # descriptor: the first error of each stream that cannot be written to
_optional: list[None] = []  # not empty: there is work that goes on whatever becomes of what is printed


class Forgiving(io.FileIO):
    """A descriptor to write to. An error goes to `tell`, which raises it or does not; what was to be written is lost
    then.
    """

    def __init__(self, descriptor: int, tell: Callable[[OSError], None], closefd: bool = True) -> None:
        super().__init__(descriptor, "wb", closefd=closefd)
        self._tell = tell

    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # somebody has made it non-blocking
                select.select([], [self], [])
        except OSError as error:
            self._tell(error)
            return memoryview(data).nbytes
        return written


def text_of(
    raw: Forgiving, encoding: str, line_buffering: bool = False, write_through: bool = False
) -> io.TextIOWrapper:
    """A text file; what its encoding has no sign for is written as an escape."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding,
        "backslashreplace",
        line_buffering=line_buffering,
        write_through=write_through,
    )


@contextmanager
def kept() -> Iterator[None]:
    """Standard output and error never fail, but for one case: what a command was asked to print (no run, see
    `optional`) must not get lost, unless it was the reader who had enough.

    Streams that somebody else has put in the place of the process's own are left alone.
    """
    _fill()
    before: list[tuple[str, TextIO]] = []
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            before.append((name, stream))
            setattr(sys, name, _stream(descriptor, stream))
    try:
        yield
    finally:
        for name, stream in before:
            try:
                getattr(sys, name).flush()
            finally:
                setattr(sys, name, stream)


def optional() -> None:
    """From now on this process does work whose results are in files: it says once that a stream is lost and goes on."""
    _optional.append(None)
    for descriptor, error in _lost.items():
        _say(descriptor, error)


def _fill() -> None:
    """Opens nothing in the place of a standard stream that was closed: else the next file that is opened would be it,
    and what libraries and children print would be in there.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free


def _stream(descriptor: int, before: TextIO | None) -> io.TextIOWrapper:
    """The same stream, which keeps its errors to itself; `before` is None where it was closed."""

    def tell(error: OSError) -> None:
        if descriptor in _lost:
            return
        _lost[descriptor] = error
        if _optional:
            _say(descriptor, error)
        elif descriptor == 1 and error.errno != errno.EPIPE:
            raise OSError(error.errno, error.strerror, _NAMES[descriptor])

    how = {name: bool(getattr(before, name, False)) for name in ("line_buffering", "write_through")}
    return text_of(Forgiving(descriptor, tell, closefd=False), getattr(before, "encoding", "utf-8"), **how)


def _say(descriptor: int, error: OSError) -> None:
    """On the other stream, past its buffers: this may be in the middle of a write to it."""
    line = f"warning: {_NAMES[descriptor]} cannot be written to ({error.strerror}): the run goes on without it\n"
    with suppress(OSError):  # it is lost too
        os.write(3 - descriptor, line.encode())
