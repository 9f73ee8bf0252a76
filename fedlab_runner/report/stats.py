"""Statistics over seeds. Only the functions that need `scipy` import it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlab_runner.core.metric_names import is_share
from fedlab_runner.report.runs import Run
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.summary import evaluations, first_as_good

MIN_SEEDS = 3  # the fewest seeds that two methods must share for a test of their difference
SIGNIFICANCE_LEVEL = 0.05  # of the two-sided tests
ROUNDING = 1e-12  # of the largest value, up to which differences of two methods are equal


def mean(values: Sequence[float]) -> float:
    """The mean; NaN without values."""
    return statistics.fmean(values) if values else math.nan


def std(values: Sequence[float]) -> float:
    """The sample standard deviation (n - 1); NaN for fewer than two values, and if a value is not finite."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


@dataclass(frozen=True)
class Difference:
    """The difference of two methods over the seeds that both have."""

    seeds: int
    mean: float
    low: float  # of the 95 % confidence interval; NaN for fewer than two seeds
    high: float
    p: float  # of a two-sided paired t-test; NaN if it is not defined, as for equal differences


def paired(one: Mapping[Any, float], other: Mapping[Any, float]) -> Difference:
    """The difference `one` - `other` over the seeds that both have finished with finite values.

    A seed decides partition, cohorts, delays and first model, so that their common effect cancels out.
    """
    seeds = [seed for seed in one if seed in other and math.isfinite(one[seed]) and math.isfinite(other[seed])]
    values = [one[seed] - other[seed] for seed in seeds]
    if len(values) < 2:
        return Difference(len(values), mean(values), math.nan, math.nan, math.nan)
    from scipy.special import stdtr  # the distribution of t

    centre, error = mean(values), std(values) / math.sqrt(len(values))
    rounding = ROUNDING * max(abs(each[seed]) for each in (one, other) for seed in seeds)
    p = 2 * float(stdtr(len(values) - 1, -abs(centre) / error)) if error > rounding else math.nan
    return Difference(len(values), centre, *confidence(values), p)


def confidence(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of a mean by the distribution of t; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan, math.nan
    from scipy.special import stdtrit

    centre = mean(values)
    half = float(stdtrit(len(values) - 1, 1 - SIGNIFICANCE_LEVEL / 2)) * std(values) / math.sqrt(len(values))
    return centre - half, centre + half


def interval(values: Sequence[float], metric: str) -> tuple[float, float]:
    """The 95 % confidence interval of a metric's mean, of a share within 0 and 1; NaN for fewer than two values."""
    low, high = confidence(values)
    return (max(low, 0.0), min(high, 1.0)) if is_share(metric) else (low, high)


def holm(ps: Sequence[float], tests: int | None = None) -> list[float]:
    """p-values adjusted for the number of tests (Holm, 1979). NaN stays NaN and does not count as a test. Where these
    are the p-values of only some tests, which the data may have chosen, `tests` is the number of all.
    """
    known = sorted((p, i) for i, p in enumerate(ps) if not math.isnan(p))
    count = len(known) if tests is None else tests
    adjusted, largest = [math.nan] * len(ps), 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (count - rank) * p))
        adjusted[i] = largest
    return adjusted


def total(rows: Sequence[Row], key: str, until: float = math.inf) -> float:
    """The sum of a metric over the rounds up to `until`; NaN if no row has it."""
    values = [row[key] for row in rows if key in row and row["round"] <= until]
    return math.fsum(values) if values else math.nan


def reached(run: Run, target: float) -> int | None:
    """The round of the run's first evaluation whose metric reaches the target; None if no evaluation does, and for a
    damaged run.
    """
    if run.damaged:
        return None
    found = evaluations(run.rows, run.metric, run.evaluation.get("every", 1), run.rounds)
    return first_as_good(found, run.metric, target)


def cumulative(rows: Sequence[Row], key: str) -> dict[int, float]:
    """The sum of a metric up to each round, by round."""
    sums, so_far = {}, 0.0
    for row in rows:
        so_far += row.get(key, 0.0)
        sums[row["round"]] = so_far
    return sums
