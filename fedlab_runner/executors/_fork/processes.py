"""Forked helpers that only compute. They end with their parent and do not touch its files, signals and locks."""

import logging
import os
import select
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fedlab_runner.utils import attempt
from fedlab_runner.utils.signals import name
from fedlab_runner.utils.system import cpu_seconds, die_with_parent

_log = logging.getLogger(__name__)
POLL_SECONDS = 5.0  # between two checks of the helpers for which the parent waits
STUCK_SECONDS = 60.0  # without CPU time, after which a helper is killed
MAX_MESSAGE_BYTES = 500  # of the message about the error that ended a helper
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # signals that helpers do not handle


class Helper(NamedTuple):
    """A forked process and the parent's end of the line to it."""

    pid: int
    line: socket.socket


def fork(helpers: list[Helper], run: Callable[[socket.socket], None], *descriptors: int) -> None:
    """Starts a helper that calls `run` with its end of the line, and adds it to `helpers`. No signal can come in
    between.

    The helper closes these descriptors of the parent. It sends its error, if any, on the line.
    """
    parent = os.getpid()
    ours, its = socket.socketpair()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        with warnings.catch_warnings():
            # Python warns of every fork of a process with several threads (the tracker's, the console's): a helper
            # could wait for a lock that such a thread held. Helpers only compute, and a stuck helper is killed.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            its.close()
            helpers.append(Helper(pid, ours))
            return
        code = 1
        try:
            die_with_parent(parent)
            for number in _SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # helpers keep the setting of nohup
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for line in (ours, *(other.line for other in helpers)):
                line.close()
            for descriptor in descriptors:
                os.close(descriptor)
            run(its)
            code = 0
        except BaseException as error:
            its.send(f"{type(error).__name__}: {error}"[:MAX_MESSAGE_BYTES].encode())
            raise
        finally:
            os._exit(code)  # without Python's cleanup, which would touch the parent's files and locks
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kill(helpers: list[Helper]) -> None:
    """Kills helpers and waits until they have ended."""
    for helper in helpers:
        os.kill(helper.pid, signal.SIGKILL)
    for helper in helpers:
        os.waitpid(helper.pid, 0)
        helper.line.close()
    helpers.clear()


def answers(helpers: Sequence[Helper]) -> Iterator[tuple[Helper, bytes]]:
    """Each helper with its answer, in the order of the answers; empty for a dead helper. Kills a stuck helper."""
    busy = {helper: (0.0, time.monotonic()) for helper in helpers}
    while busy:
        for line in select.select([helper.line for helper in busy], [], [], POLL_SECONDS)[0]:
            helper = next(each for each in busy if each.line is line)
            del busy[helper]
            yield helper, _received(line)
        for helper, (used, since) in list(busy.items()):
            now = cpu_seconds(helper.pid)
            if now is None or now > used:
                busy[helper] = (now or 0.0, time.monotonic())
            elif time.monotonic() - since > STUCK_SECONDS:
                _log.warning("worker process %d has stood still for %.0f s and is killed", helper.pid, STUCK_SECONDS)
                os.kill(helper.pid, signal.SIGKILL)
                busy[helper] = (used, time.monotonic())


def bury(helpers: list[Helper], dead: Helper, said: bytes) -> str:
    """Removes a dead helper from `helpers` and returns in words why it died."""
    helpers.remove(dead)
    dead.line.close()
    code = os.waitstatus_to_exitcode(os.waitpid(dead.pid, 0)[1])
    if code < 0 and not said:
        return f"worker process {dead.pid} was killed by {name(-code)} in {attempt.place()}"
    cause = said.decode(errors="replace") or f"exit code {code}"
    return f"worker process {dead.pid} ended early in {attempt.place()} ({cause})"


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(MAX_MESSAGE_BYTES)
    except ConnectionResetError:
        return b""
