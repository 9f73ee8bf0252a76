"""Curves over the seeds of a setting, and the panels that show them over rounds and over costs."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fedlab_runner.methods.registry import Line, tell_apart
from fedlab_runner.report.content import Chart, Entry, Panel, Series
from fedlab_runner.report.formatting import listed, not_finite, scale, unit, with_unit
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.scales import LOG_RATIO, padded, span
from fedlab_runner.report.stats import cumulative, mean, std
from fedlab_runner.report.tables import best, by_condition
from fedlab_runner.sweep import states
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.metric_direction import lower_is_better
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.escaping import file_name

MAX_LINES = 10  # of a panel: nobody can distinguish more
MAX_POINTS, MIN_POINTS = 140, 24  # of a line
PAGE_POINTS = 20_000  # of all lines of a page, each about 36 bytes with its band
SAME_SHARE = 1.1  # factor between the ratios of costs, below which their pictures are nearly the same
# Of the axis, the share of the ends of the better half of the curves, below which a zoomed panel follows.
CROWDED_SHARE = 0.35
# Lengths of ink and gap, in line widths, for a second method of one colour.
DASHES: tuple[tuple[float, ...], ...] = ((), (5.0, 2.0), (6.0, 2.0, 1.0, 2.0), (1.2, 1.8), (9.0, 2.0, 2.0, 2.0))
EVALUATION_SECONDS = "time/evaluation"
OUTLIER = 10.0  # factor over the middle of the largest tenth of the values, above which values lie outside of the axis


class Curve(NamedTuple):
    """One method's metric over the rounds at which all shown seeds have it."""

    name: str
    seeds: int
    state: str  # of the runs, one of `sweep.states`
    rounds: list[int]
    means: list[float]
    stds: list[float]  # zero for one seed
    costs: dict[str, list[float]]  # by metric key: cumulative cost at each round, the mean over seeds
    not_finite: int = 0  # finished seeds whose objective is not finite, where the line may end early


class CostAxis(NamedTuple):
    """A cost as the x axis of the metric. `timed`: its key is in `timings.jsonl`."""

    key: str
    title: str
    label: str
    timed: bool = False


COSTS = (  # the costs over which the page draws the metric
    CostAxis("comm/upload_mb", "By upload", "MB uploaded so far"),
    CostAxis("cost/client_gflops", "By the clients' work", "GFLOPs of clients so far"),
    CostAxis("cost/server_gflops", "By the server's work", "GFLOPs of the server so far"),
    CostAxis("time/round", "By seconds", "seconds of rounds so far, on the machine of each run", timed=True),
)


def lines_of(groups: Sequence[SeedGroup]) -> dict[str, Line]:
    """The line of each name: a method's own, or another shade, dash and marker for its other settings.

    If two methods have one colour, the second takes a free dash.
    """
    named = {each.name: each.style for each in groups}
    found: dict[str, Line] = {}
    for name, line in zip(named, tell_apart(list(named.values())), strict=True):
        taken = [each.dash for each in found.values() if each.colour == line.colour]
        free = (dash for dash in (line.dash, *DASHES) if dash not in taken)
        found[name] = replace(line, dash=next(free, line.dash))
    return found


def convergence(groups: Sequence[SeedGroup], lines: Mapping[str, Line], most: int) -> list[Chart]:
    """For each condition, the metric over rounds and over costs, a line for each method with at most `most` points."""
    found = []
    for condition, members in by_condition(groups).items():
        shown = most_interesting(members)
        curves = [curve for group in shown if (curve := curve_of(group)).rounds]
        if not curves:
            continue
        caption = [condition or "All runs"]
        if len(members) > len(shown):
            caption.append(f"the best {MAX_LINES} of {len(members)} methods; the tables have all")
        panels, same = _panels(curves, members[0].runs[0].metric, most)
        caption += same
        legend = [Entry(_label(curve), lines[curve.name]) for curve in curves]
        found.append(Chart(file_name(f"curves-{condition}"), "; ".join(caption), legend, panels))
    return found


def curve_of(group: SeedGroup, metric: str | None = None, timed: bool = False) -> Curve:
    """The curve over the finished seeds; over all undamaged seeds if none is finished.

    `metric`: None is the objective's. `timed`: the metric is in `timings.jsonl`.
    """
    key = metric or group.runs[0].metric

    def points_of(run: Run) -> dict[int, float]:
        found = points(run.timings if timed else run.rows, key, run.rounds)
        if key == EVALUATION_SECONDS:  # the other rounds had no evaluation, which took no time
            found = {round: found[round] for round in points(run.rows, run.metric, run.rounds) if round in found}
        return found

    runs = [run for run in group.counting if points_of(run)]
    found = [points_of(run) for run in runs]
    rounds = sorted(set.intersection(*(set(each) for each in found))) if found else []
    values = [[each[round] for each in found] for round in rounds]
    costs: dict[str, list[float]] = {}
    for cost in COSTS if metric is None else ():
        logged = [run.timings if cost.timed else run.rows for run in runs]
        if logged and all(any(cost.key in row for row in rows) for rows in logged):
            sums = [_until(cumulative(rows, cost.key), rounds) for rows in logged]
            costs[cost.key] = [mean(each) for each in zip(*sums, strict=True)]
    deviations = [std(each) if len(each) > 1 else 0.0 for each in values]
    state = states.common(run.state for run in runs)
    means = [mean(each) for each in values]
    return Curve(group.name, len(runs), state, rounds, means, deviations, costs, not_finite([group]))


def points(rows: Sequence[Row], key: str, rounds: int) -> dict[int, float]:
    """The finite values of a metric by round, for the rounds that count."""
    values = {row["round"]: row[key] for row in rows if key in row and row["round"] <= rounds}
    return {round: value for round, value in values.items() if math.isfinite(value)}


def over_rounds(curves: Sequence[Curve], metric: str, title: str, most: int) -> Panel:
    """A panel of a metric over rounds."""
    return _panel(
        curves, metric, title, "round", lambda curve: [float(each) for each in curve.rounds], most, whole=True
    )


def most_interesting(groups: Sequence[SeedGroup]) -> list[SeedGroup]:
    """The best methods, as many as a panel has lines, in their given order."""
    left, kept = list(groups), list[SeedGroup]()
    while left and len(kept) < MAX_LINES:
        kept.append(best(left) or left[0])
        left.remove(kept[-1])
    return [group for group in groups if any(group is each for each in kept)]


def per_line(groups: Sequence[SeedGroup]) -> int:
    """The number of points of a line that keeps the page small."""
    lines = sum(min(MAX_LINES, len(each)) for each in by_condition(groups).values()) * (len(COSTS) + 2)
    return max(MIN_POINTS, min(MAX_POINTS, PAGE_POINTS // max(1, lines)))


def _until(sums: Mapping[int, float], rounds: Sequence[int]) -> list[float]:
    """The sum at each of some rounds; for a round without a row, that of the last round before."""
    known = sorted(sums)
    before = [bisect_right(known, round) for round in rounds]
    return [sums[known[count - 1]] if count else 0.0 for count in before]


def _label(curve: Curve) -> str:
    state = [curve.state] if curve.state != states.FINISHED else []
    words = [count_of(curve.seeds, "seed"), *state, *states.counted([], curve.not_finite)]
    return f"{curve.name} ({', '.join(words)})"


def _panels(curves: Sequence[Curve], metric: str, most: int) -> tuple[list[Panel], list[str]]:
    """The panels of a condition, and sentences on the costs whose panels would show the same picture."""
    whole = over_rounds(curves, metric, "Over rounds", most)
    panels, same = [whole], dict[str, list[str]]()
    if (close := _zoomed(whole, metric)) is not None:
        panels.append(close)
    kept: list[tuple[str, Callable[[Curve], Sequence[float]]]] = [("rounds", lambda curve: curve.rounds)]
    for cost in COSTS:
        spenders = [curve for curve in curves if cost.key in curve.costs and curve.costs[cost.key][-1] > 0]
        if not spenders:
            continue
        alike = [name for name, axis in kept if _proportional(spenders, cost.key, axis)]
        if alike and len(spenders) == len(curves):
            same.setdefault(alike[0], []).append(cost.label.removesuffix(" so far"))
            continue
        panels.append(_over_cost(spenders, curves, metric, cost, most))
        kept.append((cost.label.removesuffix(" so far"), partial(_spent, cost.key)))
    return panels, [f"over {listed(costs)} the picture is nearly that over {axis}" for axis, costs in same.items()]


def _spent(key: str, curve: Curve) -> Sequence[float]:
    return curve.costs.get(key, [])


def _proportional(curves: Sequence[Curve], key: str, axis: Callable[[Curve], Sequence[float]]) -> bool:
    """Whether a cost is the same multiple of another axis at the middle and at the end of all curves."""
    ratios = []
    for curve in curves:
        other, own = axis(curve), curve.costs[key]
        if len(other) != len(own):
            return False
        for i in {len(own) // 2, len(own) - 1}:
            if not (own[i] > 0 and other[i] > 0):
                return False
            ratios.append(own[i] / other[i])
    return max(ratios) < SAME_SHARE * min(ratios)


def _over_cost(spenders: Sequence[Curve], curves: Sequence[Curve], metric: str, cost: CostAxis, most: int) -> Panel:
    """The metric over a cost. If totals differ widely, the axis is logarithmic, without zero."""
    done = [curve for curve in spenders if curve.state == states.FINISHED]
    spent = [curve.costs[cost.key][-1] for curve in done or spenders]
    wide = max(spent) > LOG_RATIO * min(spent)

    def axis(curve: Curve) -> list[float]:
        return [math.nan if wide and x <= 0 else x for x in curve.costs.get(cost.key, [])]

    shown = [curve if curve in spenders else curve._replace(rounds=[]) for curve in curves]
    return _panel(shown, metric, cost.title, cost.label, axis, most, log=wide)


def _panel(
    curves: Sequence[Curve],
    metric: str,
    title: str,
    x_label: str,
    axis: Callable[[Curve], list[float]],
    most: int,
    log: bool = False,
    whole: bool = False,
) -> Panel:
    factor, lines = scale(metric), []
    for i, curve in enumerate(curves):
        x = axis(curve) if curve.rounds else []
        if not any(map(math.isfinite, x)):
            continue
        kept = [each for each in _thinned(len(x), most) if math.isfinite(x[each])]
        means = [factor * curve.means[each] for each in kept]
        band = [factor * curve.stds[each] for each in kept] if any(curve.stds) else []
        floor = 0.0 if min(means) >= 0 else -math.inf  # a band of seconds or of shares has no values that these cannot
        ceiling = 100.0 if factor == 100 else math.inf
        low = [max(floor, m - s) for m, s in zip(means, band, strict=True)] if band else []
        high = [min(ceiling, m + s) for m, s in zip(means, band, strict=True)] if band else []
        lines.append(Series(i, [x[each] for each in kept], means, low, high, curve.state != states.FINISHED))
    places = span(x for each in lines for x in each.x) or (0.0, 1.0)
    ends = places if log or places[0] < places[1] else (places[0] - 0.5, places[1] + 0.5)
    if log and ends[0] == ends[1]:
        ends = (ends[0] / 2, ends[1] * 2)
    label = ", ".join(filter(None, [metric if title != metric else "", unit(metric)]))
    y_range = _y_range(lines, metric)
    return Panel(title, x_label, label, lines, ends, y_range, log, whole, _finding(curves, metric))


def _thinned(count: int, most: int) -> list[int]:
    """Places of at most `most` points, with the first and the last one."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _y_range(lines: Sequence[Series], metric: str) -> tuple[float, float]:
    values = sorted(y for each in lines for y in (*each.y, *each.low, *each.high) if math.isfinite(y))
    found = span(values)
    if found is None:
        return (0.0, 1.0)
    low, high = found
    usual = values[int(0.95 * (len(values) - 1))]
    if 0 < OUTLIER * usual < high and low >= 0:  # a few values far outside of the others
        high = 2 * usual
    return padded(low, high, 0.0 if low >= 0 else -math.inf, 100.0 if scale(metric) == 100 else math.inf)


def _zoomed(whole: Panel, metric: str) -> Panel | None:
    """The second half of the rounds at the height of the better half of the curves, if these are close together."""
    start, end = whole.x_range
    middle = (start + end) / 2
    last = {each.entry: [y for x, y in zip(each.x, each.y, strict=True) if x >= middle] for each in whole.series}
    last = {entry: values for entry, values in last.items() if len(values) > 2}
    if len(last) < 2:
        return None
    ranked = sorted(last, key=lambda entry: last[entry][-1], reverse=not lower_is_better(metric))
    better = ranked[: max(2, -(-len(ranked) // 2))]
    found = span(y for entry in better for y in last[entry])
    if found is None or found[1] - found[0] > CROWDED_SHARE * (whole.y_range[1] - whole.y_range[0]):
        return None
    ends = padded(*found, floor=whole.y_range[0], ceiling=whole.y_range[1])
    title = f"The best {len(better)}, from round {math.ceil(middle)} on"
    near, words = (float(math.ceil(middle)), end), "A closer view of the same curves."
    return replace(whole, title=title, x_range=near, y_range=ends, finding=words)


def _finding(curves: Sequence[Curve], metric: str) -> str:
    """A sentence on the curves that end best and worst."""
    known = sorted((curve.means[-1], curve.name) for curve in curves if curve.rounds)
    if not known:
        return ""
    ends = known if lower_is_better(metric) else known[::-1]
    best_one = f"{ends[0][1]} ends at {with_unit(ends[0][0], metric)}"
    if len(ends) == 1:
        return f"{best_one}."
    return f"{best_one}, the best of {len(ends)}; {ends[-1][1]} at {with_unit(ends[-1][0], metric)}, the worst."
