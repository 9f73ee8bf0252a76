"""The number of torch's threads on the CPU, for server training, evaluation, and local training in one process."""

import logging
import os
from pathlib import Path

import torch

from fedlab_runner.executors._run_notes import note, noted_count
from fedlab_runner.utils import waiting_threads
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.system import THREADS, THREADS_OF_SWEEP, usable_cores

_log = logging.getLogger(__name__)
MAX_DEFAULT_THREADS = 8  # if neither config nor environment sets a number: the networks of this field are small


def set_threads(wanted: int | None, folder: Path | None) -> int:
    """Sets torch's number of threads and returns it: `wanted`, else the environment's, else the number of usable cores.

    The number does not depend on other work of the machine, because the last bits depend on the number. The run in
    `folder` notes it and continues with it on the same type of machine, unless `wanted` or the environment says
    otherwise, which a warning tells.
    """
    before = None if folder is None else noted_count(folder, "threads")
    threads = wanted or _by_environment() or before or min(MAX_DEFAULT_THREADS, usable_cores())
    torch.set_num_threads(threads)
    if threads > 1 and waiting_threads.set_too_late:
        _log.warning(
            "torch was imported before fedlab_runner, so that its threads wait at full speed and hold up others: "
            "import fedlab_runner first, or set GOMP_SPINCOUNT=1000"
        )
    if before not in (None, threads):
        now, key = count_of(threads, "thread"), "threads" if wanted else THREADS
        _log.warning("the run has %s (%s) in the place of %d as before: the last digits may differ", now, key, before)
    if folder is not None:
        note(folder, threads=threads)
    return threads


def _by_environment() -> int | None:
    """The number in the environment, for a job in that of its sweep's command; None without one."""
    told = os.environ.get(THREADS_OF_SWEEP, os.environ.get(THREADS, ""))
    value = told.partition(",")[0].strip()  # a list has a number for each level of nesting
    return int(value) or None if value.isdecimal() else None
