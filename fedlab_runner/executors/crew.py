"""Forked helpers of one thread each: they wait for a round's pieces of work, share them with their parent, and wait
again.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import struct
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedlab_runner.system import cpu_seconds, die_with_parent

_log = logging.getLogger(__name__)
_NUMBER = struct.Struct("<i")
MOST_TICKETS = 1024  # they must fit into a pipe at once, which holds 4 KiB at the least
LOOK_SECONDS = 5.0  # how often helpers are looked at while the parent waits for them
STUCK_SECONDS = 60.0  # a helper that has used no CPU time for so long is given up
MOST_WORDS = 500  # of a helper's last words
_GO, _DONE = b"g", b"d"
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_ending: list[int] = []  # helpers that have been dismissed and only have to be collected


class Share(NamedTuple):
    """A round's pieces, by number, and what carries one out."""

    train: Callable[[int], None]
    pieces: int

    def tickets(self) -> list[np.ndarray]:
        """The pieces, dealt out so that each part is a fair share of long and short ones."""
        count = min(self.pieces, MOST_TICKETS)
        return [np.arange(first, self.pieces, count) for first in range(count)]


class Helper(NamedTuple):
    """A forked process and the parent's end of the line to it."""

    pid: int
    line: socket.socket


class Crew:
    """So many helpers; `begin` is called in each of them at the start of a round and says what there is to do.

    It is a fork: what `begin` refers to, they have as it was when the crew was made.
    """

    def __init__(self, helpers: int, begin: Callable[[], Share]) -> None:
        collect()
        self._owner = os.getpid()
        self._queue, self._fill = os.pipe()
        os.set_blocking(self._queue, False)
        self._helpers: list[Helper] = []
        self._lost = False  # a helper
        try:
            for _ in range(helpers):
                self._fork(begin)
        except BaseException:
            self.kill()
            raise

    def is_whole(self) -> bool:
        """Whether it can work on: no helper has died, and they are this process's own."""
        if self._owner != os.getpid() or self._lost or self._fill < 0:
            return False
        return not any(select.select([each.line], [], [], 0)[0] for each in self._helpers)

    def work(self, share: Share, done: np.ndarray) -> None:
        """Carries out the pieces that are not done yet, in this process and in the helpers; what a helper that dies had
        taken is left.
        """
        tickets = share.tickets()
        left = [number for number, pieces in enumerate(tickets) if not done[pieces].all()]
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
        for helper in self._helpers:
            os.kill(helper.pid, signal.SIGKILL)
        for helper in self._helpers:
            os.waitpid(helper.pid, 0)
        self._close()

    def _close(self) -> None:
        for helper in self._helpers:
            helper.line.close()
        self._helpers.clear()
        for descriptor in (self._queue, self._fill):
            if descriptor >= 0:
                os.close(descriptor)
        self._queue = self._fill = -1

    def _take(self, share: Share, tickets: list[np.ndarray]) -> None:
        while True:
            try:
                ticket = os.read(self._queue, _NUMBER.size)
            except BlockingIOError:  # none is left
                return
            for number in tickets[_NUMBER.unpack(ticket)[0]].tolist():
                share.train(number)

    def _fork(self, begin: Callable[[], Share]) -> None:
        """Starts a helper and notes it: no signal comes between the two."""
        parent = os.getpid()
        ours, its = socket.socketpair()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python warns of every fork beside other threads (the tracker's, the console's): one that held a lock
                # which a helper needs would leave it waiting. Helpers only compute, and a stuck one is given up.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid:
                its.close()
                self._helpers.append(Helper(pid, ours))
                return
            code = 1
            try:
                die_with_parent(parent)
                for number in _SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                for line in (ours, *(other.line for other in self._helpers)):
                    line.close()
                os.close(self._fill)
                while its.recv(1):
                    share = begin()
                    self._take(share, share.tickets())
                    its.send(_DONE)
                code = 0
            except BaseException as error:
                its.send(f"{type(error).__name__}: {error}"[:MOST_WORDS].encode())
                raise
            finally:
                os._exit(code)  # the parent's files, tracker and locks are none of its business
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _wait(self) -> None:
        """Until every helper is done or has died; one that does nothing any more is killed."""
        busy = {helper: (0.0, time.monotonic()) for helper in self._helpers}
        while busy:
            for line in select.select([helper.line for helper in busy], [], [], LOOK_SECONDS)[0]:
                helper = next(each for each in busy if each.line is line)
                del busy[helper]
                if (said := _received(line)) != _DONE:
                    self._helpers.remove(helper)
                    self._lost = True
                    line.close()
                    status = os.waitpid(helper.pid, 0)[1]
                    cause = said.decode(errors="replace") or _cause(status)
                    _log.warning("worker process %d ended early (%s)", helper.pid, cause)
            for helper, (used, since) in list(busy.items()):
                now = cpu_seconds(helper.pid)
                if now is None or now > used:
                    busy[helper] = (now or 0.0, time.monotonic())
                elif time.monotonic() - since > STUCK_SECONDS:
                    _log.warning(
                        "worker process %d has stood still for %.0f s and is given up", helper.pid, STUCK_SECONDS
                    )
                    os.kill(helper.pid, signal.SIGKILL)
                    busy[helper] = (used, time.monotonic())


def collect() -> None:
    """Waits for helpers that have been dismissed."""
    while _ending:
        with contextlib.suppress(ChildProcessError):  # this process is itself a fork of theirs
            os.waitpid(_ending.pop(), 0)


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(MOST_WORDS)
    except ConnectionResetError:
        return b""


def _cause(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"
