"""What the system knows of processes and cores."""

import ctypes
import os
import signal
import sys
from functools import lru_cache
from pathlib import Path

_PR_SET_PDEATHSIG = 1


@lru_cache(maxsize=1)
def usable_cores() -> int:
    """The CPU cores that this process may use, by its affinity and its control group's quota."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # none, or no limit ("max")
        return cores


def die_with_parent(parent: int) -> None:
    """Lets the system kill this process when its parent ends in whatever way (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def cpu_seconds(pid: int) -> float | None:
    """CPU time that a process has used; None where that cannot be found out."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def resident_bytes() -> int | None:
    """Memory that this process has now; None where unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def memory_bytes() -> int | None:
    """Memory that could be used without swapping, the limit of the control group included; None where unknown."""
    found = []
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, ValueError, KeyError):
        pass
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        found.append(limit - used)
    except (OSError, ValueError):  # none, or no limit ("max")
        pass
    return min(found, default=None)
