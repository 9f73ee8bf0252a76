"""Standard output and error that cannot stop a run. They report a closed pipe, a full disk or a closed window once.

The live view of a run, which writes to these streams, is `fedlab_runner.tracking.terminal`.
"""

import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_NAMES = {1: "standard output", 2: "standard error"}  # by descriptor
_lost: dict[int, OSError] = {}  # by descriptor: the first error of a stream that cannot be written to
_optional: list[None] = []  # not empty: the process does work whose results are in files


class Forgiving(io.FileIO):
    """A descriptor to write to. It passes an error to `tell`, which may raise it; otherwise the bytes are lost."""

    def __init__(self, descriptor: int, tell: Callable[[OSError], None], closefd: bool = True) -> None:
        super().__init__(descriptor, "wb", closefd=closefd)
        self._tell = tell

    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # another process has made it non-blocking
                select.select([], [self], [])
        except OSError as error:
            self._tell(error)
            return memoryview(data).nbytes
        return written


def text_of(
    raw: Forgiving, encoding: str, line_buffering: bool = False, write_through: bool = False
) -> io.TextIOWrapper:
    """A text file; a character that its encoding lacks is written as an escape."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding,
        "backslashreplace",
        line_buffering=line_buffering,
        write_through=write_through,
    )


@contextmanager
def protected() -> Iterator[None]:
    """Within the block standard output and error do not fail, with one exception: before `make_optional`, a command
    whose printed answer is lost says so and ends with code 1, unless the reader closed the pipe.

    Streams by which another program has replaced the process's own are left alone.
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


def make_optional() -> None:
    """From now on the results of this process are in files: it reports a lost stream once and continues."""
    if _optional:  # a job of a sweep before this one has reported the lost streams
        return
    _optional.append(None)
    for descriptor, error in _lost.items():
        _say(descriptor, error)


def _fill() -> None:
    """Opens /dev/null for each closed standard stream. Otherwise the next open file would take the stream's descriptor,
    and the output of libraries and children would go into that file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # open takes the lowest free number


def _stream(descriptor: int, before: TextIO | None) -> io.TextIOWrapper:
    """A stream that hides its errors, with the settings of `before` (None: the stream was closed)."""

    def tell(error: OSError) -> None:
        if descriptor in _lost:
            return
        _lost[descriptor] = error
        if _optional:
            _say(descriptor, error)
        elif descriptor == 1 and error.errno != errno.EPIPE:
            _write(2, f"error: {_NAMES[1]}: {error.strerror}: print to another place\n")
            raise SystemExit(1)

    how = {name: bool(getattr(before, name, False)) for name in ("line_buffering", "write_through")}
    return text_of(Forgiving(descriptor, tell, closefd=False), getattr(before, "encoding", "utf-8"), **how)


def _say(descriptor: int, error: OSError) -> None:
    """Warns on the other stream."""
    line = f"warning: {_NAMES[descriptor]} cannot be written to ({error.strerror}): the run continues without it\n"
    _write(3 - descriptor, line)


def _write(descriptor: int, line: str) -> None:
    """Writes a line past the buffers of a stream: the process may be in the middle of a write to that stream."""
    with suppress(OSError):  # this stream is lost too
        os.write(descriptor, line.encode())
