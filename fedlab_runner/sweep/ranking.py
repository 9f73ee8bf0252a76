"""The settings of a sweep as people compare them: the best first, with numbers that can be read."""

import re
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from fedlab_runner.sweep.records import Row
from fedlab_runner.tracking.metric_direction import lower_is_better

_LONG = re.compile(r"(?<==)-?[0-9]+\.[0-9]{5,}(e-?[0-9]+)?(?![^ ])")  # a number as samplers draw it


class Judged(NamedTuple):
    """What the objective of a setting is: the key of its metric, and its rule; empty if no job has these."""

    metric: str
    rule: str


def judged(row: Row) -> Judged:
    """What the objective of a setting is."""
    summary = next((job.summary for job in row.jobs if "metric" in job.summary), {})
    return Judged(str(summary.get("metric", "")), str(summary.get("rule", "")))


def comparable(rows: Sequence[Row]) -> dict[Judged, list[Row]]:
    """The settings by what their objective is: those of other metrics or rules have other numbers."""
    found: dict[Judged, list[Row]] = {}
    for row in rows:
        found.setdefault(judged(row), []).append(row)
    return found


def best_first(rows: Sequence[Row]) -> list[Row]:
    """The settings, the best mean first, those of each metric and rule together, and those without a value last."""
    ranked: list[Row] = []
    for of, some in comparable([row for row in rows if row.values()]).items():
        ranked += sorted(some, key=_mean, reverse=not lower_is_better(of.metric))
    return ranked + [row for row in rows if not row.values()]


def _mean(row: Row) -> float:
    return statistics.fmean(row.values())


def short(names: Sequence[str]) -> list[str]:
    """The names of settings, with numbers of at most four digits if these tell the settings apart."""
    found = [_LONG.sub(lambda number: f"{float(number[0]):.4g}", name) for name in names]
    return found if len(set(found)) == len(set(names)) else list(names)
