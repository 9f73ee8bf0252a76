"""The limits of memory and CPU time that Linux's control groups set to this process, as by Docker, Slurm and systemd.

A container sees its own group as the root. Elsewhere the group of a job is below it, and each group above can have a
limit of its own, so that the tightest one counts. https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")  # where the system shows the groups
OWN = Path("/proc/self/cgroup")  # the groups of this process, a line for each hierarchy: number:controllers:group


def cores() -> int | None:
    """The cores whose time the groups leave to this process, rounded, at least one; None without a limit."""
    found = [quota / period for quota, period in map(_quota, _groups("cpu")) if quota > 0]
    return max(1, round(min(found))) if found else None


def free_bytes() -> int | None:
    """The memory that this process's groups can still take; None without a limit.

    Pages of files count as free: the system drops them where a group needs memory.
    """
    found = [free for group in _groups("memory") if (free := _free(group)) is not None]
    return max(0, min(found)) if found else None


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's groups and of those above them, of version 2 and of the controller's version 1."""
    for line in OWN.read_text().splitlines() if OWN.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            base = ROOT / controller if controllers else ROOT
            group = base / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(base))


def _quota(group: Path) -> tuple[float, float]:
    """Microseconds of CPU time in each period, and the period; (0, 1) without a limit."""
    try:
        if (new := group / "cpu.max").is_file():
            words = new.read_text().split()
        else:
            words = [(group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
        quota, period = map(int, words)
        return quota, period
    except (OSError, ValueError):  # no such file, or no limit ("max")
        return 0, 1


def _free(group: Path) -> int | None:
    """What a group's limit leaves, beside all memory but files' pages; None without a limit."""
    for limit, used, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # version 1
    ):
        try:
            pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            files = sum(int(pages.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            return int((group / limit).read_text()) - int((group / used).read_text()) + files
        except (OSError, ValueError):  # the other version, or no limit ("max")
            continue
    return None
