"""Summaries of methods over the conditions of a block, as Agarwal et al. (NeurIPS 2021, `rliable`) propose them.

Only the functions that need `scipy` import it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedlab_runner.methods.registry import Line
from fedlab_runner.report.content import Chart, Entry, Panel, ReportTable, Section, Series, cell
from fedlab_runner.report.formatting import NONE, scale, together, unit, value, with_unit
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.scales import padded
from fedlab_runner.report.stats import MIN_SEEDS, mean
from fedlab_runner.report.tables import by_condition, eligible, finished
from fedlab_runner.utils.escaping import file_name

RESAMPLES = 2000  # of the seeds, for an interval
PROFILE_POINTS = 41  # values at which a profile is computed
PROFILE_RESAMPLES = 400  # of the seeds, for the band of a profile
MIN_CONDITIONS = 2  # for a summary over conditions
MAX_PROFILES = 10  # lines in the picture of profiles
Scores = Mapping[str, Sequence[np.ndarray]]  # by method: the finished seeds' values under each condition


def section(groups: Sequence[SeedGroup], lines: Mapping[str, Line], level: int) -> Section | None:
    """The summary of the methods that are eligible under every condition; None for fewer than two methods."""
    scores, left_out = scores_of(groups)
    if len(scores) < 2:
        return None
    metric = groups[0].runs[0].metric
    less = groups[0].runs[0].lower_is_better
    count = len(next(iter(scores.values())))
    notes = [
        f"Over the {count} conditions of this block, which count alike, however many seeds each has. IQM is the mean "
        "of the middle half of all runs, which neither one lucky seed nor one hard condition decides. Its 95 % "
        f"interval comes from a bootstrap that draws seeds within each condition ({RESAMPLES:,} times). With few seeds "
        "it is too short: with three it holds the true value in about 85 % of cases, with ten in 92 %. Rank 1 is the "
        "best mean under a condition. The profile shows the share of a method's runs that are at least as good as a "
        "value: a higher line is better."
    ]
    if left_out:
        notes.append(
            f"Without a finished seed under some condition, or with fewer than {MIN_SEEDS} where others have "
            f"{MIN_SEEDS}, and left out: {', '.join(left_out)}."
        )
    ranks = ranks_of(scores, less)
    first_ranks = [min(each) for each in zip(*ranks.values(), strict=True)]
    centres = {name: iqm(samples) for name, samples in scores.items()}
    tops = leaders(centres, less)
    rows, digits = [], groups[0].runs[0].digits
    for name, samples in scores.items():
        low, high = interval(samples)
        ends = NONE if math.isnan(low) else f"{value(low, metric, digits)} to {value(high, metric, digits)}"
        means = [float(each.mean()) for each in samples]
        first = sum(rank == top_rank for rank, top_rank in zip(ranks[name], first_ranks, strict=True))
        rows.append(
            [
                cell(name),
                cell(value(centres[name], metric, digits), bold=name in tops, sort=centres[name]),
                cell(ends, sort=low),
                cell(value(mean(means), metric, digits), sort=mean(means)),
                cell(f"{mean(ranks[name]):.2f}", sort=mean(ranks[name])),
                cell(f"{first} of {count}", sort=first),
            ]
        )
    measure = unit(metric)
    header = ["method", "IQM", "95 % interval", "mean", "mean rank", "best in"]
    table = ReportTable(header, rows, units=["", measure, measure, measure, "", ""], title=f"{metric} over conditions")
    chart = _profiles(scores, lines, metric, less, centres)
    return Section("Over all conditions", notes, [table], [chart], level=level)


def scores_of(groups: Sequence[SeedGroup]) -> tuple[Scores, list[str]]:
    """The values of the methods that are eligible under every condition, and the names of the others.

    There are no scores for fewer than two conditions.
    """
    conditions = by_condition(groups)
    if len(conditions) < MIN_CONDITIONS:
        return {}, []
    found: dict[str, list[np.ndarray]] = {}
    for members in conditions.values():
        for group in eligible(members):
            found.setdefault(group.name, []).append(np.asarray(finished([group])))
    whole = {name: samples for name, samples in found.items() if len(samples) == len(conditions)}
    names = dict.fromkeys(group.name for group in groups)
    return whole, [name for name in names if name not in whole]


def iqm(samples: Sequence[np.ndarray]) -> float:
    """The interquartile mean: the mean of the middle half of all values, where conditions weigh alike."""
    return float(_middle_mean(*samples))


def leaders(centres: Mapping[str, float], less_is_better: bool) -> list[str]:
    """The methods with the best interquartile mean, several only if theirs are equal."""
    top = (min if less_is_better else max)(centres.values())
    return [name for name, centre in centres.items() if centre == top]


def interval(samples: Sequence[np.ndarray]) -> tuple[float, float]:
    """The 95 % interval of the interquartile mean, by a bootstrap within each condition; NaN for fewer than two
    seeds.
    """
    return _bootstrap(samples, _middle_mean, RESAMPLES)


def _middle_mean(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean over the last axis of samples [..., n_i] without a quarter at each end. Each sample has the weight 1.

    A quarter of n values is n // 4 of them, as in `scipy.stats.trim_mean`, whose result this is for equal n_i.
    """
    assert axis == -1, axis
    values = np.concatenate(samples, axis=-1)
    count = values.shape[-1]
    weights = np.concatenate([np.full(each.shape[-1], 1 / each.shape[-1]) for each in samples]) / len(samples)
    order = np.argsort(values, axis=-1)
    cut = count // 4 / count
    ends = np.clip(np.cumsum(weights[order], axis=-1), cut, 1 - cut)  # where each value's weight ends
    kept = np.diff(ends, axis=-1, prepend=cut)
    return np.asarray((np.take_along_axis(values, order, axis=-1) * kept).sum(-1) / (1 - 2 * cut))


def ranks_of(scores: Scores, less_is_better: bool) -> dict[str, list[float]]:
    """The rank of each method's mean under each condition; equal means share a rank."""
    from scipy.stats import rankdata

    means = np.array([[each.mean() for each in samples] for samples in scores.values()])  # [methods, conditions]
    ranks = rankdata(means if less_is_better else -means, axis=0)
    return {name: [float(each) for each in row] for name, row in zip(scores, ranks, strict=True)}


def _profiles(
    scores: Scores, lines: Mapping[str, Line], metric: str, less: bool, centres: Mapping[str, float]
) -> Chart:
    """Performance profiles: the share of runs at least as good as a value; conditions count alike."""
    names = sorted(scores, key=lambda name: centres[name], reverse=not less)[:MAX_PROFILES]
    names = [name for name in scores if name in names]
    everything = np.concatenate([each for name in names for each in scores[name]])
    low, high = padded(float(everything.min()), float(everything.max()))
    values = np.linspace(low, high, PROFILE_POINTS)
    factor, series = scale(metric), []
    for i, name in enumerate(names):
        good = [(each <= values[:, None]) if less else (each >= values[:, None]) for each in scores[name]]
        shares = np.mean([each.mean(-1) for each in good], axis=0)

        def statistic(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
            return np.asarray(np.mean([each.mean(axis) for each in drawn], axis=0))

        band = _bands([each.astype(float) for each in good], statistic)
        x, y = [factor * float(each) for each in values], [100 * float(each) for each in shares]
        below, above = ([100 * float(each) for each in edge] for edge in band)
        series.append(Series(i, x, y, below, above))
    label = ", ".join(filter(None, [metric, unit(metric)]))
    first = leaders(centres, less)
    has = "has" if len(first) == 1 else "share"
    said = f"{together(first)} {has} the best interquartile mean, {with_unit(centres[first[0]], metric)}."
    how = "at most" if less else "at least"
    panel = Panel(
        "Performance profile", label, f"runs with {how} this value, %", series, (factor * low, factor * high), (0, 100),
        finding=said,
    )  # fmt: skip
    legend = [Entry(name, lines[name]) for name in names]
    name = file_name(f"profile-{' '.join(names)}")
    return Chart(name, f"Performance profile. {said} Bands are 95 % intervals.", legend, [panel])


def _bootstrap(samples: Sequence[np.ndarray], statistic: Any, resamples: int) -> tuple[float, float]:
    if any(len(each) < 2 for each in samples):
        return math.nan, math.nan
    found = _intervals(samples, statistic, resamples)
    return float(found[0]), float(found[1])


def _bands(good: Sequence[np.ndarray], statistic: Any) -> tuple[Sequence[float], Sequence[float]]:
    if any(each.shape[-1] < 2 for each in good):
        return (), ()
    low, high = _intervals(good, statistic, PROFILE_RESAMPLES)
    return [float(each) for each in low], [float(each) for each in high]


def _intervals(samples: Sequence[np.ndarray], statistic: Any, resamples: int) -> Any:
    """Percentile intervals. Each call draws from the same seed, so that equal runs make equal pages."""
    from scipy.stats import bootstrap  # type: ignore[attr-defined]  # scipy does not mark it as exported

    found: Any = bootstrap(
        tuple(samples), statistic, n_resamples=resamples, vectorized=True, axis=-1, method="percentile",
        random_state=np.random.default_rng(0),
    )  # fmt: skip
    return found.confidence_interval
