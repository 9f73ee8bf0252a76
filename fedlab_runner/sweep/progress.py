"""The view of a running sweep: where it is, and a line for each job that ends."""

import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedlab_runner.core.metric_names import shown
from fedlab_runner.sweep import states
from fedlab_runner.sweep.ranking import short
from fedlab_runner.sweep.records import Job, Row, total
from fedlab_runner.utils.durations import duration
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.system import SHARED_BY


def place(folder: Path, number: int) -> str:
    """`job 7/18`; `job 7` if the number of jobs is unknown."""
    jobs = total(folder)
    return f"job {number}/{jobs}" if jobs else f"job {number}"


def time_left(jobs: Sequence[Job], number: int) -> str:
    """`, about 12 min left` in a sweep of this `number` of jobs, of which these have records, from the seconds of the
    finished ones; empty if unknown or below 1 s.
    """
    took = [job.seconds for job in jobs if job.status == states.FINISHED and job.seconds is not None]
    left = number - sum(job.status not in (states.UNFINISHED, states.NOT_BEGUN, states.STOPPED) for job in jobs)
    if not took or left <= 0:
        return ""
    at_once = max(1, int(os.environ.get(SHARED_BY) or 1))
    seconds = math.ceil(left / at_once) * fmean(took)
    return f", about {duration(seconds)} left" if seconds >= 1 else ""


def begun(folder: Path, number: int, rows: Sequence[Row], overrides: list[str]) -> str:
    """The line of a job that begins: `job 7/18, about 12 min left: algorithm=fedavg seed=0`. `rows` are the records."""
    jobs = [job for row in rows for job in row.jobs]
    everyone = [set(job.overrides) for job in jobs]
    shared = set.intersection(*everyone) if len(everyone) > 1 else set()
    words = shlex.join(short([each for each in overrides if each not in shared]))
    return f"{place(folder, number)}{time_left(jobs, total(folder))}: {visible(words) or '(defaults)'}"


def ended(folder: Path, number: int, job: Job, metric: str, reused: bool) -> str:
    """The line of a job that has ended: `job 7/18 finished: 87.30 % in 12 min, outputs/fedavg-1a2b3c4d`.

    `metric`: the key of its objective. `reused`: the run was finished before the job began.
    """
    name = place(folder, number)
    if job.objective is None:
        where = f", {visible(job.folder)}" if job.folder else ""  # none if the folder is another run's
        return f"{name} {job.status}{where}: {job.error}"
    took = "" if job.seconds is None else f" in {duration(job.seconds)}"
    state = str(job.error).partition(":")[0] if job.status == states.PRUNED else job.status  # after which round
    state += " before" * reused
    return f"{name} {state}: {shown(job.objective, metric)}{took}, {visible(job.folder)}"
