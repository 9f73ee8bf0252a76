"""What `fedlab-verify` checks in an unpacked bundle, and how it says so."""

import argparse
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

from fedlab_runner.config.explain import reason
from fedlab_runner.report import bundle
from fedlab_runner.report.build import select
from fedlab_runner.report.folders import find
from fedlab_runner.report.runs import Run
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.durations import duration
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.escaping import visible
from fedlab_runner.verify import checks, environment
from fedlab_runner.verify.compare import DIFFERENT
from fedlab_runner.verify.configs import Settings, with_remedy
from fedlab_runner.verify.own_code import allowed
from fedlab_runner.verify.recompute import Recomputed, choose, recompute, rounds_of

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")  # environment variables of Hugging Face's libraries


def verify(folder: Path, out: Path, given: argparse.Namespace) -> bool:
    """Shows each check of the bundle in the folder, and each run that is computed again, in `out`; returns whether all
    of them hold. Raises UserError for an argument of the command, or a bundle, that is wrong.
    """
    with allowed(given.config_dir) if given.config_dir else nullcontext():
        return _verified(folder, out, given)


def _verified(folder: Path, out: Path, given: argparse.Namespace) -> bool:
    told, settings = checks.about(folder), Settings(given.overrides)
    if not (folder / bundle.OUTPUTS).is_dir():
        raise UserError(f"{given.bundle} holds no runs")
    found = find([folder / bundle.OUTPUTS])
    _show(f"{given.bundle}: {count_of(len(found.runs), 'run')}, made by {told.made}")
    _show(f"{'manifest':<12}{checks.digest_of_manifest(folder)}")
    all_checks = [checks.hashes(folder), checks.tables(folder, found, told), checks.summaries(found, told)]
    fine = [checks.report(check, _show) for check in (*all_checks, checks.names(found))]
    lines = environment.differences(found.runs)
    for line in lines or ["as here"]:
        _show(f"{'environment':<12}{line}")
    runs = choose(select(found.runs, None), given.cells, given.draw)
    if not runs:
        most = min(3, len(found.runs))
        _show(f"{'runs':<12}none computed again; --cells {most} computes {most} of {len(found.runs)}")
    with _offline(settings):
        for number, run in enumerate(runs, 1):
            _show(f"{f'run {number}/{len(runs)}':<12}{run.name}: {_size(run, given.rounds)}")
            fine.append(_again(run, settings, out / run.name, given))
    wrong, made = fine.count(False), len(fine) - fine.count(None)
    more = "; the configs could not be checked here" if None in fine else ""
    _show((f"{wrong} of {made} checks do not hold" if wrong else f"all {made} checks hold") + more)
    return not wrong


def _again(run: Run, settings: Settings, folder: Path, given: argparse.Namespace) -> bool:
    """Computes a run again and shows how it compares; returns whether it is equal or within the tolerance."""
    try:
        done = recompute(run, settings, folder, given.rounds, given.tolerance)
    except Exception as error:  # a stranger's config may raise anything; the other runs are still computed
        _show(f"{'':<12}NOT COMPUTED: {with_remedy(reason(error))}")
        return False
    for line in _outcome(done):
        _show(f"{'':<12}{line}")
    return done.comparison.verdict != DIFFERENT and done.same_objective


def _outcome(done: Recomputed) -> Iterator[str]:
    yield str(done.comparison)
    if done.objective is not None:
        there, here = done.objective
        verdict = "" if done.same_objective else f"{DIFFERENT}: "
        yield f"{verdict}objective {there:.6g} there, {here:.6g} here"
    if done.same_partition is False:
        yield "the clients have other examples: partition.csv differs"


def _size(run: Run, rounds: int | None) -> str:
    """The amount of computation, in words, with the time that it took on the other machine."""
    last = rounds_of(run, rounds)
    took = [row.get("time/wall", math.nan) for row in run.timings if row["round"] == last]
    return count_of(last, "round") + (f", which took {duration(took[0])} there" if took and took[0] >= 0 else "")


@contextmanager
def _offline(settings: Settings) -> Iterator[None]:
    """Keeps libraries from downloading what a bundle's config names, unless the command allows downloads."""
    with nullcontext() if settings.downloads else mock.patch.dict(os.environ, dict.fromkeys(OFFLINE, "1")):
        yield


def _show(line: str) -> None:
    print(visible(line), flush=True)
