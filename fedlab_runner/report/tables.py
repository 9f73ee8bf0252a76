"""The tables of a report, computed from the rows of `metrics.jsonl` and `timings.jsonl`."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fedlab_runner.core.metric_names import cell_of
from fedlab_runner.report.content import Cell, ReportTable, cell
from fedlab_runner.report.formatting import (
    NONE,
    PLUS_MINUS,
    amount,
    decimals,
    readable,
    remarks,
    spread,
    unit,
    without_result,
)
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import MIN_SEEDS, mean, std, total
from fedlab_runner.sweep import ranking, states
from fedlab_runner.utils.counting import count_of

SUMS = (  # metrics of which a table shows the sum over the rounds: key, heading, unit
    ("comm/upload_mb", "uploaded", "MB"),
    ("comm/download_mb", "downloaded", "MB"),
    ("cost/client_gflops", "clients' work", "GFLOPs"),
    ("cost/server_gflops", "server's work", "GFLOPs"),
)
CACHE = "cost/server_cache_mb"  # metric key of the server's cache
MAX_COLUMNS = 12  # conditions of the comparison, above which they are its rows
NOTHING = cell(NONE, muted=True)  # a cell without a value


def by_condition(groups: Iterable[SeedGroup]) -> dict[str, list[SeedGroup]]:
    """The settings by condition."""
    found: dict[str, list[SeedGroup]] = {}
    for group in groups:
        found.setdefault(group.condition, []).append(group)
    return found


def finished(groups: Iterable[SeedGroup]) -> list[float]:
    """The finite objectives of some groups."""
    return [each for group in groups for each in group.finished.values() if math.isfinite(each)]


def eligible(groups: Iterable[SeedGroup]) -> list[SeedGroup]:
    """The methods among which the best is chosen: those with `MIN_SEEDS` finished seeds, or all if none has so many."""
    groups = list(groups)
    enough = enough_seeds([len(finished([group])) for group in groups])
    return [group for group, each in zip(groups, enough, strict=True) if each]


def enough_seeds(counts: Sequence[int]) -> list[bool]:
    """Whether a method with so many seeds may be the best: with `MIN_SEEDS`, or with any if none has so many."""
    least = MIN_SEEDS if max(counts, default=0) >= MIN_SEEDS else 1
    return [count >= least for count in counts]


def eligible_words(groups: Sequence[SeedGroup]) -> str:
    """The rule of `eligible` as the end of a sentence on what is bold; empty if it excludes no method."""
    enough = {len(values) >= MIN_SEEDS for group in groups if (values := finished([group]))}
    return f", among those with at least {MIN_SEEDS} seeds where there are any" if len(enough) > 1 else ""


def winners(groups: Iterable[SeedGroup]) -> list[SeedGroup]:
    """The eligible methods with the best mean objective, several only if their means are equal."""
    means = [(mean(finished([group])), group) for group in eligible(groups)]
    if not means:
        return []
    top = (min if means[0][1].runs[0].lower_is_better else max)(each for each, _ in means)
    return [group for each, group in means if each == top]


def best(groups: Iterable[SeedGroup]) -> SeedGroup | None:
    """The first of the winners; None without a finished run."""
    return next(iter(winners(groups)), None)


def comparison(groups: Sequence[SeedGroup]) -> ReportTable:
    """The table of methods (rows) and conditions (columns): mean and standard deviation over seeds, the best in bold.

    A condition has only the decimals that mean something in view of its standard deviations. Many conditions of fewer
    methods are the rows.
    """
    columns = by_condition(groups)
    tops = [winners(members) for members in columns.values()]
    rounding = [decimals_of(members) for members in columns.values()]
    usual = usual_seeds(groups)
    cells = {(group.name, group.condition): group for group in groups}
    rows = []
    for name in dict.fromkeys(group.name for group in groups):
        row = [cell(name)]
        for condition, top, digits in zip(columns, tops, rounding, strict=True):
            found = cells.get((name, condition))
            bold = any(found is each for each in top)
            row.append(result([found] if found else [], bold=bold, digits=digits, usual=usual))
        rows.append(row)
    metric = groups[0].runs[0].metric
    conditions = ranking.short([condition or metric for condition in columns])
    header = ["method", *conditions]
    turned = len(columns) > max(MAX_COLUMNS, len(rows))
    if turned:
        header = ["condition", *(row[0].lines[0] for row in rows)]
        rows = [[cell(name), *(row[i] for row in rows)] for i, name in enumerate(conditions, 1)]
    over = f"over {count_of(usual, 'seed') if usual else 'seeds'}" + (
        "" if seeds_agree(groups, usual) else ", where no other number is given"
    )
    title = f"{metric}: mean {PLUS_MINUS} standard deviation (n - 1) {over}; the best of each "
    title += f"{'row' if turned else 'column'} in bold{eligible_words(groups)}"
    return ReportTable(header, rows, title=title, units=["", *(unit(metric) for _ in header[1:])])


def usual_seeds(groups: Sequence[SeedGroup]) -> int:
    """The most frequent number of finished seeds of a setting."""
    return usual_count(len(finished([group])) for group in groups)


def usual_count(counts: Iterable[int]) -> int:
    """The most frequent positive number, of several the largest; 0 if there is none."""
    found = Counter(count for count in counts if count)
    return max(found, key=lambda count: (found[count], count), default=0)


def seeds_agree(groups: Sequence[SeedGroup], usual: int) -> bool:
    """Whether all settings with a result have `usual` finished seeds."""
    return {len(finished([group])) for group in groups} - {0} <= {usual}


def decimals_of(groups: Sequence[SeedGroup]) -> int | None:
    """The decimals of a column of these settings."""
    run = groups[0].runs[0]
    return decimals([std(finished([group])) for group in groups], run.metric) if run.digits is None else run.digits


def result(
    groups: Sequence[SeedGroup],
    bold: bool = False,
    deviation: float | None = None,
    digits: int | None = None,
    usual: int = 0,
) -> Cell:
    """Mean and standard deviation (or another deviation) of the finished seeds, with remarks on missing seeds.

    `usual`: the number of seeds that the cell need not mention.
    """
    if not groups:
        return cell("not run", muted=True)
    values, metric = finished(groups), groups[0].runs[0].metric
    if not values:
        return cell(without_result(groups), *remarks(groups), muted=True)
    seeds = "" if len(values) == usual else count_of(len(values), "seed")
    words = spread(values, metric, deviation, digits)
    return cell(words, seeds, *remarks(groups), bold=bold, sort=mean(values))


def costs(groups: Sequence[SeedGroup]) -> ReportTable:
    """The costs: means and standard deviations over the finished seeds, or over the undamaged ones while none is
    finished.
    """
    counting = [group.counting for group in groups]
    runs = [run for members in counting for run in members]
    sums = [each for each in SUMS if any(each[0] in row for run in runs for row in run.rows)]
    columns: list[tuple[str, str, Callable[[Run], float]]] = [
        *((name, measure, partial(_total, key)) for key, name, measure in sums),
        ("largest cache", "MB", largest_cache),
        ("a round", "s", _seconds),
    ]
    known = [(name, measure, of) for name, measure, of in columns if any(not math.isnan(of(run)) for run in runs)]
    rounds = [[float(run.done) for run in members if run.rows] for members in counting]
    values = [
        [[number for run in members if not math.isnan(number := of(run))] for members in counting] for *_, of in known
    ]
    measures = []
    for i, (_, measure, _) in enumerate(known):
        measure, factor = readable(measure, map(mean, values[i]))
        measures.append(measure)
        values[i] = [[factor * each for each in column] for column in values[i]]
    shown = [_spreads(column) for column in (rounds, *values)]
    rows = []
    for i, group in enumerate(groups):
        missing = ", ".join(states.counted(run.state for run in group.runs))
        row = [cell(group.name), cell(shown[0][i], missing, sort=mean(rounds[i]))]
        row += [cell(words[i], sort=mean(column[i])) for words, column in zip(shown[1:], values, strict=True)]
        rows.append(row)
    header = ["method", "rounds", *(name for name, _, _ in known)]
    return ReportTable(header, rows, title=groups[0].condition, units=["", "", *measures])


def _spreads(column: Sequence[Sequence[float]]) -> list[str]:
    """The mean ± standard deviation of each setting's costs; the mean alone where no setting's seeds differ."""
    deviations = list(map(std, column))
    if not any(each > 0 for each in deviations):
        return [amount(mean(each)) for each in column]
    digits = decimals(deviations, "")
    return [spread(each, "", digits=digits) for each in column]


def matrix(groups: Sequence[SeedGroup]) -> ReportTable | None:
    """The cells of the evaluation matrix at the end of the finished runs: means and deviations over seeds; None if no
    run has cells.
    """
    last = {id(run): run.summary["final"] for group in groups for run in group.runs if run.finished}
    cells = sorted({of for row in last.values() for key in row if (of := cell_of(key)) is not None})
    if not cells:
        return None
    rows, digits = [], groups[0].runs[0].digits
    for group in groups:
        found = [last[id(run)] for run in group.runs if run.finished]
        row = [cell(group.name)]
        for name in cells:
            both = (name, f"{name}_worst_decile")
            values, worst = ([r[key] for r in found if math.isfinite(r.get(key, math.nan))] for key in both)
            seeds = count_of(len(values), "seed") if len(values) < len(found) else ""
            remark = f"worst tenth {spread(worst, name, digits=digits)}" if worst else ""
            words = spread(values, name, digits=digits)
            row.append(cell(words, seeds, remark, sort=mean(values)) if values else NOTHING)
        rows.append(row)
    return ReportTable(["method", *cells], rows, title=groups[0].condition, units=["", *(unit(name) for name in cells)])


def _total(key: str, run: Run) -> float:
    return total(run.rows, key)


def largest_cache(run: Run) -> float:
    """The megabytes of the server's cache in the round in which it was largest; NaN without a cache."""
    return max((row[CACHE] for row in run.rows if CACHE in row), default=math.nan)


def _seconds(run: Run) -> float:
    return mean([row["time/round"] for row in run.timings if "time/round" in row])
