"""Cores, memory and processes, as the system reports them."""

import ctypes
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedlab_runner.utils import control_groups

_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal at a parent's end
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt
# Environment variables by which a user sets glibc's allocator.
_ALLOCATOR_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
TRIM_THRESHOLD_BYTES = 2**30  # of freed memory stay with the process
MMAP_THRESHOLD_BYTES = 2**26, 2**25  # the first that the C library allows; larger blocks go back to the system at once
SHARED_BY = "FEDLAB_SHARED_BY"  # environment variable: how many jobs share this machine
THREADS = "OMP_NUM_THREADS"  # environment variable: a user's number of threads
# Environment variable: what THREADS held when the sweep of this process began; joblib sets THREADS for its workers.
THREADS_OF_SWEEP = "FEDLAB_THREADS"


def usable_cores() -> int:
    """The CPU cores that this process may use; a share of the machine's if jobs of a sweep run side by side."""
    return max(1, machine_cores() // int(os.environ.get(SHARED_BY) or 1))


def busy_cores(seconds: float = 0.1) -> float:
    """How many of the machine's cores worked while this process slept for `seconds` (Linux; elsewhere 0).

    The work of this process's children counts too.
    """
    before, began = _idle_ticks(), time.perf_counter()
    if before is None:
        return 0.0
    time.sleep(seconds)
    after, ticks = _idle_ticks(), (time.perf_counter() - began) * os.sysconf("SC_CLK_TCK")
    return 0.0 if after is None else max(0.0, len(os.sched_getaffinity(0)) - (after - before) / ticks)


def _idle_ticks() -> int | None:
    """The idle time of this process's cores since the start of the system, in clock ticks; None where unknown."""
    try:
        own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return sum(int(ticks) for fields in lines if fields[0] in own for ticks in fields[4:6])  # idle, iowait
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def jobs_at_once(launcher: Mapping[str, Any]) -> int:
    """How many jobs of a sweep share this machine, by the config of Hydra's launcher."""
    if launcher["_target_"].endswith(("submitit_launcher.LocalLauncher", "ray_launcher.RayLauncher")):
        return machine_cores()  # the one starts all jobs at once, the other one for each core
    jobs = int(launcher.get("n_jobs") or 1)
    return max(1, machine_cores() + 1 + jobs if jobs < 0 else jobs)


@lru_cache(maxsize=1)
def machine_cores() -> int:
    """The CPU cores that affinity and the control groups' quotas leave to this process, busy or not."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, control_groups.cores() or cores)


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def die_with_parent(parent: int) -> None:
    """Has the system kill this process when its parent ends for any reason (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended already
        os._exit(1)


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Has the C library keep freed memory for the next allocation (glibc; elsewhere nothing happens).

    Otherwise the activations of convolutions go back to the system after each local step, and the next step gets the
    memory again, page by page, which takes a quarter of its time. A user's own settings in the environment stay.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _ALLOCATOR_SETTINGS):
        return
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other libraries may have none
        mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        any(mallopt(_M_MMAP_THRESHOLD, size) for size in MMAP_THRESHOLD_BYTES)


def cpu_seconds(pid: int) -> float | None:
    """The CPU time that a process has used; None where unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def resident_bytes() -> int | None:
    """The resident memory of this process; None where unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def free_disk_bytes(folder: Path) -> int:
    """The bytes that still fit into a folder, or into the nearest folder above it that exists."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def memory_bytes() -> int | None:
    """The memory that is free without swapping, within the limits of the control groups; None where unknown."""
    found = [control_groups.free_bytes()]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, ValueError, KeyError):
        pass
    return min((free for free in found if free is not None), default=None)
