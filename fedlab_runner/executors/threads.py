"""The number of torch's threads on the CPU, for server training, evaluation, and local training in one process."""

import logging
import os
from pathlib import Path

import torch

from fedlab_runner.executors._run_notes import note, noted_count
from fedlab_runner.utils import waiting_threads
from fedlab_runner.utils.system import usable_cores

_log = logging.getLogger(__name__)
VARIABLE = "OMP_NUM_THREADS"  # environment variable: a user's number of threads
MAX_DEFAULT_THREADS = 8  # if neither config nor environment sets a number: the networks of this field are small


def set_threads(wanted: int | None, folder: Path | None) -> int:
    """Sets torch's number of threads and returns it: `wanted`, else the environment's, else the number of usable cores.

    The number does not depend on other work of the machine, because the last bits depend on the number. The run in
    `folder` notes it and continues with it on the same type of machine, unless `wanted` or the environment says
    otherwise.
    """
    threads = wanted or _by_environment() or (folder and noted_count(folder, "threads")) or _by_machine()
    torch.set_num_threads(threads)
    if threads > 1 and waiting_threads.set_too_late:
        _log.warning(
            "torch was imported before fedlab_runner, so that its threads wait at full speed and hold up others: "
            "import fedlab_runner first, or set GOMP_SPINCOUNT=1000"
        )
    if folder is not None:
        note(folder, threads=threads)
    return threads


def _by_environment() -> int | None:
    """The number in the environment variable; None if it holds none."""
    value = os.environ.get(VARIABLE, "").partition(",")[0].strip()  # a list has a number for each level of nesting
    return int(value) or None if value.isdecimal() else None


def _by_machine() -> int:
    return min(MAX_DEFAULT_THREADS, usable_cores())
