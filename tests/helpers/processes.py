"""What a process holds: memory, file handles, threads and children, read from outside while it works."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """At one moment."""

    progress: int  # of the work, in units of the caller's
    rss: int  # bytes
    handles: int
    threads: int
    children: int


def held(pid: int, progress: int) -> Usage | None:
    """None: the process has ended."""
    folder = Path("/proc") / str(pid)
    try:
        rss = int((folder / "statm").read_text().split()[1]) * PAGE
        if not rss:
            return None  # it has ended and was not waited for
        children = sum(len((family / "children").read_text().split()) for family in (folder / "task").iterdir())
        return Usage(
            progress, rss, len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())), children
        )
    except (OSError, IndexError):
        return None


def watch(process: "subprocess.Popen[str]", progress: Callable[[], int], every: float) -> list[Usage]:
    """What a process holds, looked at every so many seconds until it ends."""
    seen: list[Usage] = []
    while process.poll() is None:
        if now := held(process.pid, progress()):
            seen.append(now)
        time.sleep(every)
    return seen


def between(seen: list[Usage], first: int, last: int) -> list[Usage]:
    """The looks at which so much was done."""
    return [each for each in seen if first <= each.progress <= last]
