"""Keeps an eye on the process of a part: hears what it says, and ends it when it takes too long."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TO_BEGIN, TO_END = 90.0, 20.0  # seconds until the first case, and after the last
LOGGED = 12  # last lines of stderr


class Ended(NamedTuple):
    """How a process ended: why it did before it was done (empty: it was), its last lines, whether it is to blame."""

    why: str
    log: list[str]
    failed: bool


def watch(words: Sequence[str], hear: Callable[[dict[str, Any]], float], until: float, over: str) -> Ended:
    """Starts a process, which writes lines of JSON to the descriptor that it is given last, and hears them: `hear`
    returns the seconds until the next one has to come. At `until`, by the monotonic clock, all is `over`.
    """
    read, write = os.pipe()
    with tempfile.TemporaryFile() as log:
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": ROOT}
        process = subprocess.Popen([*words, str(write)], pass_fds=[write], start_new_session=True, **how)
        os.close(write)
        try:
            late = _listen(read, hear, until)
            if not late:
                late = _wait(process, until)
        finally:
            os.close(read)
            _kill(process)
        tail = _tail(log)
    last = f": {tail[-1]}" if tail else ""
    if late and time.monotonic() >= until:
        return Ended(over, [], False)
    if late:
        return Ended(f"took longer than {late:g} s and was ended", tail, True)
    if process.returncode < 0:
        return Ended(f"ended by {signal.Signals(-process.returncode).name}{last}", tail, True)
    return Ended(f"ended with exit code {process.returncode}{last}" if process.returncode else "", tail, True)


def _listen(read: int, hear: Callable[[dict[str, Any]], float], until: float) -> float:
    """Until the other end is closed, or the seconds that something took too long."""
    rest, patience, since = b"", TO_BEGIN, time.monotonic()
    while True:
        left = min(since + patience, until) - time.monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            return patience
        if not (part := os.read(read, 2**16)):
            return 0.0
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            patience, since = hear(json.loads(line)), time.monotonic()


def _wait(process: subprocess.Popen[bytes], until: float) -> float:
    try:
        process.wait(max(0.1, min(TO_END, until - time.monotonic())))
    except subprocess.TimeoutExpired:
        return TO_END
    return 0.0


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Any) -> list[str]:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 2**14))
    lines = log.read().decode(errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-LOGGED:]
