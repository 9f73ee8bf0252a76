"""What a run and a process that it has started, which is no fork, say to each other."""

import os
import pickle
import re
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import numpy as np

_COUNT = struct.Struct("<q")  # the form of a number of bytes, or of parts
COLOURS = r"\x1b\[[0-9;]*m"  # in the text of a terminal


class Channel:
    """One end of a connection between two processes of a machine. Arrays in a message go as they are: nobody copies
    them into the pickled rest and out of it.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: NamedTuple) -> None:
        """Sends a message by value. Raises OSError when the other end is gone."""
        arrays = list[pickle.PickleBuffer]()
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append)
        parts = [memoryview(content), *(array.raw() for array in arrays)]
        self._end.sendall(b"".join(map(_COUNT.pack, (len(parts), *map(len, parts)))))
        for part in parts:
            self._end.sendall(part)

    def receive(self) -> Any:
        """The next message of the other end; EOFError when the other end is gone."""
        count = self._numbers(1)[0]
        content, *arrays = [self._bytes(size) for size in self._numbers(count)]
        return pickle.loads(content, buffers=arrays)

    def has_message(self) -> bool:
        """Whether `receive` would begin at once: there is a message, or the other end is gone."""
        return bool(select.select([self._end], [], [], 0)[0])

    def close(self) -> None:
        """Ends the connection."""
        self._end.close()

    def _numbers(self, count: int) -> Sequence[int]:
        return [number for (number,) in _COUNT.iter_unpack(self._bytes(_COUNT.size * count))]

    def _bytes(self, size: int) -> memoryview:
        room, begin = np.empty(size, np.uint8).data, 0  # an array's, which is not filled with zeros first
        while begin < size:
            if not (got := self._end.recv_into(room[begin:])):
                raise EOFError
            begin += got
        return room


def started(module: str, *words: str, errors: IO[bytes] | None) -> tuple[Channel, Any]:
    """Starts a module as a process that Ctrl-C does not reach, and returns the channel to it, and the process.

    Its first words are the descriptor of its end and the number of this process. It finds modules where this process
    does; -P keeps it from taking a file of the working folder, such as queue.py, for a module.
    """
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(its.fileno()), str(os.getpid()), *words],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
    return Channel(ours), process


def channel(descriptor: str) -> Channel:
    """The channel that a started process was told of."""
    return Channel(socket.socket(fileno=int(descriptor)))


class Keep(NamedTuple):
    """The request to keep an object (clients' data or a model family), which later rounds name by its number."""

    number: int
    packed: Any


class Failed(NamedTuple):
    """The answer that the training raised an error, which is pickled here."""

    error: bytes


def raised_in_worker(error: BaseException, traceback: str) -> BaseException:
    """The error, with a note of where in a worker it was raised."""
    error.add_note(f"raised in a worker:\n{re.sub(COLOURS, '', traceback).rstrip()}")
    return error
