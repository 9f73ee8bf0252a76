"""A pool of forked helpers, with one thread each, which share the chunks of each round with their parent."""

import contextlib
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from fedlab_runner.executors._fork.processes import Helper, answers, bury, fork, kill

_log = logging.getLogger(__name__)
_NUMBER = struct.Struct("<i")  # the form of a ticket in the pipe
MAX_TICKETS = 1024  # 4 bytes each: a pipe holds at least 4 KiB
_GO, _DONE = b"g", b"d"
_ending: list[int] = []  # dismissed helpers whose exit `collect` has not seen yet


class PoolWork(NamedTuple):
    """A round's chunks by number, and the function that trains one."""

    train: Callable[[int], None]
    chunks: int

    def tickets(self) -> list[np.ndarray]:
        """The numbers of the chunks, divided into tickets, each with long and short chunks."""
        count = min(self.chunks, MAX_TICKETS)
        return [np.arange(first, self.chunks, count) for first in range(count)]


class ForkPool:
    """Some helpers. Each calls `begin` at the start of a round to get the round's work.

    Helpers are forks: they see the objects to which `begin` refers as these were when the pool was made.
    """

    def __init__(self, helpers: int, begin: Callable[[], PoolWork]) -> None:
        collect()
        self._owner = os.getpid()
        self._queue, self._fill = os.pipe()
        os.set_blocking(self._queue, False)
        self._helpers: list[Helper] = []
        self._lost = False  # whether a helper has died
        try:
            for _ in range(helpers):
                fork(self._helpers, partial(self._serve, begin), self._fill)
        except BaseException:
            self.kill()
            raise

    def is_whole(self) -> bool:
        """Whether the pool can work: no helper has died, and this process is their parent."""
        if self._owner != os.getpid() or self._lost or self._fill < 0:
            return False
        return not any(select.select([each.line], [], [], 0)[0] for each in self._helpers)

    def work(self, share: PoolWork, done: np.ndarray) -> None:
        """Trains the chunks that are not done yet, in this process and in the helpers.

        Chunks that a helper took before it died stay undone.
        """
        tickets = share.tickets()
        left = [number for number, chunks in enumerate(tickets) if not done[chunks].all()]
        try:
            os.write(self._fill, b"".join(map(_NUMBER.pack, left)))
            for helper in self._helpers:
                with contextlib.suppress(OSError):  # the helper is dead: noticed below
                    helper.line.send(_GO)
            self._take(share, tickets)
            self._wait()
        except BaseException:
            self.kill()
            raise

    def dismiss(self) -> None:
        """Lets the helpers end. `collect` waits for them later, because the system needs time to free their memory."""
        if self._owner == os.getpid():
            _ending.extend(helper.pid for helper in self._helpers)
        self._close()

    def kill(self) -> None:
        """Kills the helpers."""
        kill(self._helpers)
        self._close()

    def _close(self) -> None:
        for helper in self._helpers:
            helper.line.close()
        self._helpers.clear()
        for descriptor in (self._queue, self._fill):
            if descriptor >= 0:
                os.close(descriptor)
        self._queue = self._fill = -1

    def _take(self, share: PoolWork, tickets: list[np.ndarray]) -> None:
        while True:
            try:
                ticket = os.read(self._queue, _NUMBER.size)
            except BlockingIOError:  # none is left
                return
            for number in tickets[_NUMBER.unpack(ticket)[0]].tolist():
                share.train(number)

    def _serve(self, begin: Callable[[], PoolWork], line: socket.socket) -> None:
        """In a helper: works on one round after another until the parent closes the line."""
        while line.recv(1):
            share = begin()
            self._take(share, share.tickets())
            line.send(_DONE)

    def _wait(self) -> None:
        """Waits until every helper is done or has died."""
        for helper, said in answers(self._helpers.copy()):
            if said != _DONE:
                self._lost = True
                _log.warning("%s", bury(self._helpers, helper, said))


def collect() -> None:
    """Waits until dismissed helpers have ended."""
    while _ending:
        with contextlib.suppress(ChildProcessError):  # this process is a fork of their parent
            os.waitpid(_ending.pop(), 0)
