"""The settings of a sweep as people compare them: the best first, with numbers that can be read."""

import re
import statistics
from collections.abc import Sequence

from fedlab_runner.sweep.records import Row
from fedlab_runner.tracking.metric_direction import lower_is_better

_LONG = re.compile(r"(?<==)-?[0-9]+\.[0-9]{5,}(e-?[0-9]+)?(?![^ ])")  # a number as samplers draw it


def metric_of(rows: Sequence[Row]) -> str:
    """The key of the objective's metric; empty if no job has it."""
    return next((str(job.summary["metric"]) for row in rows for job in row.jobs if "metric" in job.summary), "")


def best_first(rows: Sequence[Row]) -> list[Row]:
    """The settings, the best mean first, and those without a value last."""
    sign = 1 if lower_is_better(metric_of(rows)) else -1
    means = [(row, row.values()) for row in rows]
    ranked = sorted((pair for pair in means if pair[1]), key=lambda pair: sign * statistics.fmean(pair[1]))
    return [row for row, _ in ranked] + [row for row, values in means if not values]


def short(names: Sequence[str]) -> list[str]:
    """The names of settings, with numbers of at most four digits if these tell the settings apart."""
    found = [_LONG.sub(lambda number: f"{float(number[0]):.4g}", name) for name in names]
    return found if len(set(found)) == len(set(names)) else list(names)
