"""What a run and a process that it has started, which is no fork, say to each other, and the memory that they share."""

import mmap
import os
import pickle
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from socket import socketpair
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

MAX_ROOM_BYTES = 2**30  # of a cohort's models that are in two places at a time


def started(module: str, *words: str, errors: IO[bytes] | None, descriptor: int) -> tuple[Connection, Any]:
    """Starts a module as a process that Ctrl-C does not reach, and returns the connection to it, and the process.

    Its first words are its descriptor of the connection and that of the memory, and the number of this process.
    """
    ours, its = socketpair()
    with its:
        os.set_inheritable(descriptor, True)
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(its.fileno()), str(descriptor), str(os.getpid()), *words],
            pass_fds=[its.fileno(), descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    return Connection(ours.detach()), process


def send(connection: Connection, message: NamedTuple) -> None:
    """Sends a message by value: `Connection.send` would share tensors by descriptors that the other end cannot open."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """The next message of the other end; EOFError when the other end is gone."""
    return pickle.loads(connection.recv_bytes())


class Keep(NamedTuple):
    """The request to keep an object (clients' data or a model family), which later rounds name by its number."""

    number: int
    packed: Any


class Failed(NamedTuple):
    """The answer that the training raised an error, which is pickled here."""

    error: bytes


class Room:
    """Memory without a name for the models of a cohort, which both processes have by a descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _unnamed() if descriptor is None else descriptor
        self._owned, self._size = descriptor is None, 0
        self._memory: mmap.mmap | None = None

    def rows(self, count: int, columns: int, dtype: torch.dtype) -> Tensor | None:
        """A tensor [count, columns] of the memory, the same in both processes; None: it would be too large."""
        size = count * columns * dtype.itemsize
        if not 0 < size <= MAX_ROOM_BYTES:
            return None
        if size > self._size:
            if self._owned:
                os.ftruncate(self.descriptor, size)
            self._memory, self._size = mmap.mmap(self.descriptor, size), size
        return torch.frombuffer(self._memory, dtype=dtype, count=count * columns).view(count, columns)

    def close(self) -> None:
        """Gives the memory back, when no tensor has it any more."""
        self._memory = None
        os.close(self.descriptor)


def _unnamed() -> int:
    if hasattr(os, "memfd_create"):  # on Linux
        return os.memfd_create("fedlab")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
