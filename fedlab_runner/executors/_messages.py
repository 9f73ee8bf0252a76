"""What a run and a process that it has started, which is no fork, say to each other."""

import os
import pickle
import subprocess
import sys
from multiprocessing.connection import Connection
from socket import socketpair
from typing import IO, Any, NamedTuple


def started(module: str, *words: str, errors: IO[bytes] | None) -> tuple[Connection, Any]:
    """Starts a module as a process that Ctrl-C does not reach, and returns the connection to it, and the process.

    Its first words are its descriptor of the connection and the number of this process.
    """
    ours, its = socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(its.fileno()), str(os.getpid()), *words],
            pass_fds=[its.fileno()],
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
