"""What is asked of the system."""

import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
from fedlab_runner.utils.system import keep_freed_memory

torch.set_num_threads(1)
if sys.argv[1] == "keep":
    keep_freed_memory()
x = torch.randn(2_000_000)
for step in range(110):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    a = x + 1  # 8 MB
    b = [a[:500_000] * 2 for _ in range(4)]
    del a, b
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_taken(word: str, **environment: str) -> int:
    """How often a hundred steps with some 16 MB of intermediate results had to get a page from the system."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", STEPS, word]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=own | environment).stdout)


@pytest.mark.slow  # processes that take and free gigabytes
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told to keep memory")
def test_freed_memory_is_used_again_and_a_users_setting_is_left_alone() -> None:
    """What glibc does unasked hangs on what lies where on its heap, so that it is no measure."""
    users = pages_taken("keep", MALLOC_MMAP_THRESHOLD_="131072")
    assert users * os.sysconf("SC_PAGE_SIZE") > 100 * 12e6
    assert pages_taken("keep") < users / 100
