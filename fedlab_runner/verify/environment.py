"""Differences between the machines that ran a bundle and this one: versions, processor, commit, code."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from fedlab_runner.experiment import provenance
from fedlab_runner.experiment.code_hash import Code, changed, code_of, targets_of
from fedlab_runner.report.runs import Run
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.errors import UserError
from fedlab_runner.verify import configs

COMMIT, GPU = "commit", "gpu"
MAX_OTHERS = 5  # lines about libraries that only the runs have
_UNKNOWN = "not recorded"  # shown for a value that a run has not noted


def here() -> dict[str, str]:
    """The environment of this process: versions by library, the machine, and the commit of this package."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return provenance.versions() | provenance.machine(device) | _commit(provenance.commit_here())


def of(start: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a start of a run, as its commands.jsonl has it."""
    found: dict[str, str] = {}
    for part in ("versions", "machine"):
        told = start.get(part)
        found |= {str(key): str(value)[:200] for key, value in told.items()} if isinstance(told, dict) else {}
    return found | _commit(start.get(COMMIT))


def differences(runs: Iterable[Run]) -> list[str]:
    """A line for each thing in which the runs' environments differ from this one, and for code that has changed."""
    runs, ours = list(runs), here()
    starts = {run.name: provenance.last_start(run.folder) for run in runs}
    theirs = [of(start) for start in starts.values()]
    lines = []
    others = sorted({key for each in theirs for key in each} - ours.keys())
    keys = [*ours, *others[:MAX_OTHERS]]
    for key in (each for each in keys if each != GPU):  # without a GPU here or there, CPUs computed
        counts = Counter(
            each.get(key, _UNKNOWN) for each in theirs if each.get(key, _UNKNOWN) != ours.get(key, _UNKNOWN)
        )
        told = "; ".join(
            value + (f" ({count_of(n, 'run')})" if n < len(runs) else "") for value, n in counts.most_common(3)
        )
        if counts:
            lines.append(f"{key}: {told} there, {ours.get(key, _UNKNOWN)} here")
    if computed := Counter(each[GPU] for each in theirs if GPU in each and each[GPU] != ours.get(GPU)):
        lines.append(f"{GPU}: {'; '.join(computed)} there, {ours.get(GPU, 'none')} here")
    found = _changed_code(runs, starts)
    if not found and any(line.startswith(COMMIT) for line in lines):
        found = ["code: the modules that compute the runs are the same as there"]
    return lines + found


def _commit(commit: Any) -> dict[str, str]:
    """A commit by its first digits, with a mark if files differed from it; empty without a commit."""
    return {COMMIT: provenance.short_commit(commit)} if isinstance(commit, str) and commit else {}


def _changed_code(runs: Iterable[Run], starts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The modules that compute the runs and have changed since."""
    found: Counter[str] = Counter()
    known: dict[frozenset[str], Code] = {}  # by the classes of a config, which most runs of a bundle share
    for run in runs:
        told = starts[run.name].get("code")
        if not isinstance(told, dict):
            continue
        try:
            config = configs.fingerprint(run.folder)
            if (classes := frozenset(targets_of(config))) not in known:
                known[classes] = code_of(config)
        except UserError:  # the check of the configs reports it
            continue
        ours = known[classes]
        if words := changed({str(name): str(digest) for name, digest in told.items()}, ours):
            found[words] += 1
    return [f"code: {words} differ ({count_of(count, 'run')})" for words, count in found.most_common(3)]
