"""Forked helpers of one thread each: they wait for a round's chunks of work, share them with their parent, and wait
again.
"""

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
_NUMBER = struct.Struct("<i")
MAX_TICKETS = 1024  # they must fit into a pipe at once, which holds 4 KiB at the least
_GO, _DONE = b"g", b"d"
_ending: list[int] = []  # helpers that have been dismissed and only have to be collected


class PoolWork(NamedTuple):
    """A round's chunks, by number, and what carries one out."""

    train: Callable[[int], None]
    chunks: int

    def tickets(self) -> list[np.ndarray]:
        """The chunks, dealt out so that each part is a fair share of long and short ones."""
        count = min(self.chunks, MAX_TICKETS)
        return [np.arange(first, self.chunks, count) for first in range(count)]


class ForkPool:
    """So many helpers; `begin` is called in each of them at the start of a round and says what there is to do.

    It is a fork: what `begin` refers to, they have as it was when the pool was made.
    """

    def __init__(self, helpers: int, begin: Callable[[], PoolWork]) -> None:
        collect()
        self._owner = os.getpid()
        self._queue, self._fill = os.pipe()
        os.set_blocking(self._queue, False)
        self._helpers: list[Helper] = []
        self._lost = False  # a helper
        try:
            for _ in range(helpers):
                fork(self._helpers, partial(self._serve, begin), self._fill)
        except BaseException:
            self.kill()
            raise

    def is_whole(self) -> bool:
        """Whether it can work on: no helper has died, and they are this process's own."""
        if self._owner != os.getpid() or self._lost or self._fill < 0:
            return False
        return not any(select.select([each.line], [], [], 0)[0] for each in self._helpers)

    def work(self, share: PoolWork, done: np.ndarray) -> None:
        """Carries out the chunks that are not done yet, in this process and in the helpers; what a helper that dies had
        taken is left.
        """
        tickets = share.tickets()
        left = [number for number, chunks in enumerate(tickets) if not done[chunks].all()]
        try:
            os.write(self._fill, b"".join(map(_NUMBER.pack, left)))
            for helper in self._helpers:
                with contextlib.suppress(OSError):  # it is dead: noticed below
                    helper.line.send(_GO)
            self._take(share, tickets)
            self._wait()
        except BaseException:
            self.kill()
            raise

    def dismiss(self) -> None:
        """Lets the helpers end; they are collected later, as their memory takes a while to go."""
        if self._owner == os.getpid():
            _ending.extend(helper.pid for helper in self._helpers)
        self._close()

    def kill(self) -> None:
        """Ends the helpers, whatever they do."""
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
        """In a helper: rounds, one after another, as long as the parent asks."""
        while line.recv(1):
            share = begin()
            self._take(share, share.tickets())
            line.send(_DONE)

    def _wait(self) -> None:
        """Until every helper is done or has died."""
        for helper, said in answers(self._helpers.copy()):
            if said != _DONE:
                self._lost = True
                _log.warning("%s", bury(self._helpers, helper, said))


def collect() -> None:
    """Waits for helpers that have been dismissed."""
    while _ending:
        with contextlib.suppress(ChildProcessError):  # this process is itself a fork of theirs
            os.waitpid(_ending.pop(), 0)
