"""The limits of control groups, in the files that Linux shows."""

from pathlib import Path

import pytest

from fedlab_runner.utils import control_groups, system

GB = 10**9
NO_LIMIT = 2**63 - 4096  # version 1 of the memory controller

# A job of Slurm with version 2: its memory has a limit, and the node's system a tighter one of cores.
SLURM = {
    "system.slice/slurmstepd.scope/job_7/step_0/memory.max": "max",
    "system.slice/slurmstepd.scope/job_7/step_0/memory.current": 5 * GB,
    "system.slice/slurmstepd.scope/job_7/step_0/memory.stat": "anon 1\ninactive_file 0\nactive_file 0",
    "system.slice/slurmstepd.scope/job_7/memory.max": 16 * GB,
    "system.slice/slurmstepd.scope/job_7/memory.current": 9 * GB,
    "system.slice/slurmstepd.scope/job_7/memory.stat": f"anon 1\ninactive_file {3 * GB}\nactive_file {2 * GB}",
    "system.slice/slurmstepd.scope/job_7/cpu.max": "max 100000",
    "system.slice/cpu.max": "300000 100000",
}
# The same in version 1, with two hierarchies.
OLD_SLURM = {
    "memory/slurm/uid_1/job_7/memory.limit_in_bytes": 16 * GB,
    "memory/slurm/uid_1/job_7/memory.usage_in_bytes": 9 * GB,
    "memory/slurm/uid_1/job_7/memory.stat": f"inactive_file 1\ntotal_inactive_file {5 * GB}\ntotal_active_file 0",
    "memory/slurm/memory.limit_in_bytes": NO_LIMIT,
    "memory/slurm/memory.usage_in_bytes": 90 * GB,
    "memory/slurm/memory.stat": "",
    "cpu/slurm/uid_1/cpu.cfs_quota_us": 250_000,
    "cpu/slurm/uid_1/cpu.cfs_period_us": 100_000,
    "cpu/slurm/cpu.cfs_quota_us": -1,
    "cpu/slurm/cpu.cfs_period_us": 100_000,
}
CONTAINER = {
    "memory.max": 4 * GB,
    "memory.current": 3 * GB,
    "memory.stat": f"inactive_file {GB}\nactive_file 0",
    "cpu.max": "50000 100000",
}
# A container of version 1 that sees its own group as the root, and is told the host's name of it.
OLD_CONTAINER = {
    "memory/memory.limit_in_bytes": 4 * GB,
    "memory/memory.usage_in_bytes": 5 * GB,  # for a moment, while the system drops pages
    "memory/memory.stat": "total_inactive_file 0\ntotal_active_file 0",
    "cpu/cpu.cfs_quota_us": 350_000,
    "cpu/cpu.cfs_period_us": 100_000,
}
HYBRID = "2:cpu,cpuacct:{}\n5:memory:{}\n0::/\n"


@pytest.mark.parametrize(
    ("files", "own", "cores", "free"),
    [
        (SLURM, "0::/system.slice/slurmstepd.scope/job_7/step_0\n", 3, 12 * GB),
        (OLD_SLURM, HYBRID.format(*["/slurm/uid_1/job_7"] * 2), 2, 12 * GB),
        (CONTAINER, "0::/\n", 1, 2 * GB),
        (CONTAINER, "0::/../../host\n", 1, 2 * GB),
        (OLD_CONTAINER, HYBRID.format(*["/docker/0123abcd"] * 2), 4, 0),
        (SLURM, "0::/user.slice\n", None, None),
        ({}, "0::/\n", None, None),
        ({}, None, None, None),
    ],
)
def test_the_tightest_limit_counts_and_pages_of_files_are_free(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, object],
    own: str | None,
    cores: int | None,
    free: int | None,
) -> None:
    root, groups = tmp_path / "root", tmp_path / "groups"
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(str(content))
    if own is not None:
        groups.write_text(own)
    monkeypatch.setattr(control_groups, "ROOT", root)
    monkeypatch.setattr(control_groups, "OWN", groups)
    assert control_groups.cores() == cores
    assert control_groups.free_bytes() == free
    assert free is None or (system.memory_bytes() or 0) <= free
    assert cores is None or system.machine_cores.__wrapped__() <= cores
