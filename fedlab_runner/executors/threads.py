"""How many threads a computation on the CPU has: what the server trains, evaluation, and local training where one
process does it.
"""

import os
from pathlib import Path

import torch

from fedlab_runner.executors._autotune.cache import note_threads, noted_threads
from fedlab_runner.utils.system import idle_cores

VARIABLE = "OMP_NUM_THREADS"
MOST = 8  # unasked: the networks of this field are small


def set_threads(wanted: int | None, folder: Path | None) -> int:
    """Sets torch's number of threads, and returns it: `wanted`, else what the environment says, else the idle cores.

    Idle cores are counted once: the run in `folder` notes the number, and goes on with it on the same machine.
    """
    threads = wanted or _by_environment() or _by_machine(folder)
    torch.set_num_threads(threads)
    return threads


def _by_environment() -> int | None:
    """The user's number; None where there is none, or something else."""
    value = os.environ.get(VARIABLE, "").partition(",")[0].strip()  # a list has one for each level of nesting
    return int(value) or None if value.isdecimal() else None


def _by_machine(folder: Path | None) -> int:
    noted = None if folder is None else noted_threads(folder)
    if noted is not None:
        return noted
    threads = min(MOST, idle_cores())
    if folder is not None:
        note_threads(folder, threads)
    return threads
