"""The number of threads of torch on the CPU: for server training, evaluation, and local training in one process."""

import os
from pathlib import Path

import torch

from fedlab_runner.executors._run_notes import note_threads, noted_threads
from fedlab_runner.utils.system import idle_cores

VARIABLE = "OMP_NUM_THREADS"
MAX_DEFAULT_THREADS = 8  # where neither config nor environment has a number: the networks of this field are small


def set_threads(wanted: int | None, folder: Path | None) -> int:
    """Sets torch's number of threads and returns it: `wanted`, else the environment's, else the number of idle cores.

    Idle cores are counted once: the run in `folder` notes the number, and is continued with it on the same machine.
    """
    threads = wanted or _by_environment() or _by_machine(folder)
    torch.set_num_threads(threads)
    return threads


def _by_environment() -> int | None:
    """The number in the environment variable; None where it has none."""
    value = os.environ.get(VARIABLE, "").partition(",")[0].strip()  # a list has a number for each level of nesting
    return int(value) or None if value.isdecimal() else None


def _by_machine(folder: Path | None) -> int:
    noted = None if folder is None else noted_threads(folder)
    if noted is not None:
        return noted
    threads = min(MAX_DEFAULT_THREADS, idle_cores())
    if folder is not None:
        note_threads(folder, threads)
    return threads
