"""Checks every job of a grid before the first one starts: a fault of the last job is known at once, not after hours."""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, open_dict

from fedlab_runner.config.build import checked_run_id
from fedlab_runner.config.explain import explain
from fedlab_runner.sweep.callback import is_grid
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.sweep_job import IN_SWEEP

MAX_FAULTS = 5  # lines on the terminal; a grid with one wrong value may have it in hundreds of jobs
_log = logging.getLogger(__name__)


_legal = Sweeper.validate_batch_is_legal


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Within the block Hydra's sweeper of grids warns of each fault of its jobs before it starts the first."""
    # In the base class: Hydra loads the modules of its plugins once more, with classes of their own.
    with mock.patch.object(Sweeper, "validate_batch_is_legal", _validate):
        yield


def _validate(sweeper: Any, batch: Sequence[Sequence[str]]) -> None:
    """Composes all jobs, of which Hydra refuses those that name no key or choice, and tells the faults of the others.

    The sweep goes on: its other jobs have results, and a job with a fault fails with its reason in the table.
    """
    if not is_grid(sweeper.config.hydra):
        return _legal(sweeper, batch)
    if sweeper.batch_index > 1:  # the first batch has told all
        return None
    # Slurm runs the jobs on other machines, whose GPUs nobody knows here.
    elsewhere = "submitit" in str(sweeper.config.hydra.launcher["_target_"])
    jobs = [job for each in sweeper.overrides for job in each]
    loader = sweeper.hydra_context.config_loader
    found = defaultdict(list)
    for number, job in enumerate(jobs, 1):
        cfg = loader.load_sweep_config(sweeper.config, list(job))
        with open_dict(cfg):
            cfg.hydra.job.num, cfg.hydra.job.id = number - 1, str(number - 1)
            if elsewhere:
                cfg.device = "auto"
        for line in _faults(cfg):
            found[line].append(number)
    for line, numbers in [*found.items()][:MAX_FAULTS]:
        first = f"job {numbers[0]}/{len(jobs)}"
        more = f" and {count_of(len(numbers) - 1, 'other')}" if len(numbers) > 1 else ""
        _log.warning("%s%s will fail: %s", first, more, line, extra=IN_SWEEP)
    if len(found) > MAX_FAULTS:
        _log.warning("and %d more faults", len(found) - MAX_FAULTS, extra=IN_SWEEP)


def _faults(cfg: DictConfig) -> list[str]:
    """The faults of a job's config, whose values may take Hydra's number of the job, counted from 0 over all batches,
    and its folder.
    """
    # Not by `set_config`, which copies Hydra's part of the config: a fifth of the time of a job's check.
    with mock.patch.object(HydraConfig.instance(), "cfg", cfg):
        try:
            checked_run_id(cfg)
        except Exception as error:
            return explain(error, ()) or []  # a fault of the program has its traceback when the job fails
    return []
