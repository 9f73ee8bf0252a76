"""The command `fedlab`: compose, check, run. Every error of the user ends in one clear line and an exit code.

Exit codes: 0 done, 1 a run failed (diverged, disk full, cluster lost), 2 the command or the config is wrong, 128 + n
stopped by signal n.
"""

import logging
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from fedlab_runner.config import config_files, hydra_loader, hydra_record, listing, plugins, secrets
from fedlab_runner.config.build import conf_dir, register_resolvers, unchecked_fingerprint
from fedlab_runner.config.explain import explain, is_of_run, reason, traceback_of
from fedlab_runner.config.recorded import other_fingerprint
from fedlab_runner.experiment.failure import requeued
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.sweep import ahead, callback, records, states, table
from fedlab_runner.tracking.metric_direction import check_direction
from fedlab_runner.utils import files, frames, imports, signals, streams, version
from fedlab_runner.utils.attempt import next_start
from fedlab_runner.utils.errors import Interrupted, Pruned, RunFailed, UserError
from fedlab_runner.utils.escaping import visible
from fedlab_runner.utils.past_hydra import PastHydra, past_hydra
from fedlab_runner.utils.sweep_job import FOLDER, JOB, NAME
from fedlab_runner.utils.system import SHARED_BY, THREADS_OF_SWEEP

# At import, because a launcher's workers import only this module of the package before they compose.
register_resolvers()
config_files.register()


@frames.in_one_chunk
@streams.protected()
@imports.kept()
def main() -> int:
    """Runs the command line and returns the exit code."""
    arguments = sys.argv[1:]
    with _environment(HYDRA_FULL_ERROR="1", **dict.fromkeys((NAME, FOLDER, JOB, SHARED_BY, THREADS_OF_SWEEP))):
        try:
            if "--version" in arguments:  # Hydra would print its own version
                print(version.words())
                return 0
            files.check_working_folder()
            given, unknown = get_args_parser().parse_known_args(arguments)
            if unknown == ["--list"]:
                config_dir = Path(given.config_dir) if given.config_dir else None
                if len(given.overrides) > 1:
                    raise UserError(f"--list shows one group, got {' '.join(given.overrides)}")
                listing.show(next(iter(given.overrides), None), config_dir)
                return 0
            if behind := next((each for each in unknown if "=" in each and each[0] != "-"), None):  # argparse's rule
                raise UserError(f"cannot read {behind!r}: options such as -m stand before all keys")
            if unknown:
                raise UserError(f"cannot read {unknown[0]!r}: a key has no dashes, as in local.lr=0.1; options: --help")
            if held := secrets.in_arguments(arguments):
                raise UserError("\n".join(held))  # before Hydra writes the arguments into files
            if given.experimental_rerun:
                raise UserError("--experimental-rerun reads a pickle, which may run anything: use the run's command")
            completing = bool({"-sc", "--shell-completion"} & {*arguments})
            shown = (given.cfg, given.package) if given.cfg and given.package else None
            with signals.raised(), hydra_loader.checked(completing, shown), ahead.told():
                plugins.register()
                callback.failures.clear()
                try:
                    hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")(job)()
                finally:
                    signals.give_to_children()  # a sweep that fails ends without its callback
                    sys.stdout.flush()  # the answer of --cfg, --help or --info must not get lost
                    table.end()
                if callback.failures and not _all_ended(Path(os.environ[FOLDER])):
                    raise callback.failures[0]
            code = 0
        except KeyboardInterrupt:
            code = _report(Interrupted(signal.SIGINT), arguments)
        except PastHydra as failed:
            assert failed.__cause__ is not None
            code = _report(failed.__cause__, arguments)
        except (Exception, Interrupted) as error:
            code = _report(error, arguments)
        if (folder := os.environ.get(FOLDER)) and code < 128:
            table.show(Path(folder))
            if code == 2:
                callback.remove_if_empty(Path(folder))
        return code


@streams.protected()  # in a launcher's process too
def job(cfg: DictConfig) -> float:
    """Runs one experiment for Hydra, in this process or in a launcher's, and returns the objective."""
    streams.make_optional()
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        with past_hydra():
            return _run(cfg)
    record = callback.JobRecord(cfg)
    record.begin()
    try:
        objective = _for_sweeper(_run(cfg))
    except Interrupted as stop:  # not an Exception: Hydra ends the sweep
        record.end(states.STOPPED, error=str(stop))
        raise
    except Pruned as pruned:
        record.end(states.PRUNED, pruned.objective, str(pruned))
        return _for_sweeper(pruned.objective)  # a search uses a pruned run's objective too
    except Exception as error:  # Hydra continues with the other jobs and reports nothing before the end
        if requeued(error):
            raise SystemExit(0) from error
        record.end(states.FAILED, error=reason(error))
        raise
    record.end(states.FINISHED, objective)
    return objective


def _for_sweeper(objective: float) -> float:
    """The objective of a job. Raises RunFailed for NaN in a search: Optuna takes a failure in its place alone."""
    if math.isnan(objective) and not callback.is_grid(HydraConfig.get()):
        raise RunFailed("the objective is not a number, which a search cannot compare")
    return objective


def _run(cfg: DictConfig) -> float:
    of_hydra: Any = HydraConfig.get()
    folder = Path(of_hydra.runtime.output_dir)
    with RunLock(folder):  # a folder in use, or of another run, stays as it is
        if other_fingerprint(folder, unchecked_fingerprint(cfg)) is None:
            hydra_record.write(cfg)
    check_direction(of_hydra, str(cfg.evaluation.metric))
    with signals.raised():
        from fedlab_runner.experiment.finished import objective_of_same  # takes longer than --help

        if (objective := objective_of_same(folder, cfg)) is not None:
            return objective
        with imports.kept():
            from fedlab_runner.experiment.run import run  # imports torch: not for --help, not for shell completion

        return run(cfg)


def _report(error: BaseException, arguments: list[str]) -> int:
    """Prints the error to stderr and returns its exit code."""
    if isinstance(error, Interrupted):
        sweep = os.environ.get(FOLDER)
        where = f" ({visible(os.path.relpath(sweep))})" if sweep else ""
        then = f"the same command continues with the sweep{where}" if sweep else next_start()
        over_echo = "\r" if sys.stderr.isatty() else ""  # the terminal has written ^C there
        print(f"{over_echo}{error}; {then}", file=sys.stderr)
        logging.getLogger("torch").setLevel(logging.WARNING)  # half imported, it would log its statistics at the end
        return 128 + error.signal
    if folder := os.environ.get(FOLDER):
        rows = records.read(Path(folder))
        if failed := sum(len(row.of(states.FAILED)) for row in rows):
            print(f"error: {failed} of {sum(len(row.jobs) for row in rows)} jobs failed", file=sys.stderr)
            return 1
    lines = explain(error, arguments)
    if lines is None:
        for line in secrets.redacted(traceback_of(error)).splitlines():
            print(visible(line), file=sys.stderr)
        return 1
    for line in lines:
        print(f"error: {visible(secrets.redacted(line))}", file=sys.stderr)
    return 1 if is_of_run(error) or error in callback.failures else 2


def _all_ended(sweep: Path) -> bool:
    """Whether each job of a sweep has its result: another command may have finished jobs that failed in this one."""
    return {job.status for row in records.read(sweep) for job in row.jobs} <= {states.FINISHED, states.PRUNED}


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Sets environment variables (None: removes them) within the block, and restores them."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set_environment(values)
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


if __name__ == "__main__":
    # Imported by its name, not run as `__main__`, so that launchers can send `job` to other processes.
    from fedlab_runner import train

    signals.end_silently()
    sys.exit(train.main())
