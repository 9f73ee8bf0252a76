"""Published tables beside this package's runs, with the differences."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fedlab_runner.report.content import Cell, ReportTable, cell
from fedlab_runner.report.formatting import NONE, PLUS_MINUS, amount, decimals, difference, remarks, spread
from fedlab_runner.report.grouping import Differences, SeedGroup, label
from fedlab_runner.report.published import (
    Paper,
    deviation_of,
    fits,
    in_cell,
    meant,
    metric_of,
    names_of,
    ours_of,
    with_runs,
)
from fedlab_runner.report.stats import MIN_SEEDS, mean
from fedlab_runner.report.tables import finished, result
from fedlab_runner.sweep import ranking, states
from fedlab_runner.tracking.metric_direction import lower_is_better
from fedlab_runner.utils.counting import count_of


class PublishedCell(NamedTuple):
    """A cell of a published table beside the runs that fit it.

    `values`, `deviation` and `digits` are what `ours` shows of `metric`, unless it is muted.
    """

    groups: Sequence[SeedGroup]
    ours: Cell
    paper: Cell
    difference: Cell
    metric: str
    values: Sequence[float]
    deviation: float
    digits: int | None


def table(paper: Paper, groups: Sequence[SeedGroup]) -> ReportTable:
    """The paper's table with the runs' values."""
    columns, names = with_runs(paper, groups), names_of(paper.columns)
    measure = "%" if paper.scale == 100 else ""
    return ReportTable(
        ["method", *("ours", "paper", "difference") * len(columns)],
        [
            [cell(name), *(each for found in row for each in (found.ours, found.paper, found.difference))]
            for name, row in rows(paper, groups)
        ],
        title=f"{PLUS_MINUS} {meant(paper)}",
        units=["", *(measure,) * 3 * len(columns)],
        spans=[("", 1), *((names[i], 3) for i in columns)],
    )


def rows(paper: Paper, groups: Sequence[SeedGroup]) -> list[tuple[str, list[PublishedCell]]]:
    """The name of each row and its cells, in the columns with a run. A row of which a cell was run in several settings
    has several lines.
    """
    lines: list[tuple[str, list[list[SeedGroup]], Mapping[str, Any]]] = []
    for row in paper.rows:
        mine, keys = _settings(paper, row, groups)
        names = _variants(mine, keys)
        for variant in dict.fromkeys(names.values()) or {"": None}:
            those = [group for group in mine if names[id(group)] == variant]
            cells = [in_cell(row, column, those, groups) for column in paper.columns]
            lines.append((" ".join(filter(None, [row["name"], variant])), cells, row))
    tops = [
        max((cells[i] for _, cells, _ in lines if cells[i]), key=partial(_rank, column), default=[])
        for i, column in enumerate(paper.columns)
    ]
    return [
        (name, [_cell(paper, row, i, cells[i], tops[i]) for i in with_runs(paper, groups)])
        for name, cells, row in lines
    ]


def between_columns(paper: Paper, groups: Sequence[SeedGroup]) -> list[str]:
    """The keys, besides those of the paper's table, in which settings of a row differ between its columns alone."""
    found: dict[str, None] = {}
    for row in paper.rows:
        mine, keys = _settings(paper, row, groups)
        differences = Differences([group.setting for group in mine])
        those = dict.fromkeys(key for group in mine for key in differences.of(group.setting))
        found |= {key: None for key in those if key not in keys | _said(paper)}
    return sorted(found)


def _settings(paper: Paper, row: Mapping[str, Any], groups: Sequence[SeedGroup]) -> tuple[list[SeedGroup], set[str]]:
    """The settings of a row, and the keys, besides those of the paper's table, in which settings of one cell differ."""
    cells = [[group for group in groups if fits(group, {**column, **row["choice"]})] for column in paper.columns]
    there = {id(group) for cell in cells for group in cell}
    keys = {
        key
        for cell in cells
        for differences in [Differences([group.setting for group in cell])]
        for group in cell
        for key in differences.of(group.setting)
    }
    return [group for group in groups if id(group) in there], keys - _said(paper)


def _said(paper: Paper) -> set[str]:
    """The keys of the paper's table."""
    return {key for column in paper.columns for key in column} | {"algorithm"}


def _variants(groups: Sequence[SeedGroup], keys: set[str]) -> dict[int, str]:
    """What the lines of a row have beside its name, by id of the group: these keys, where they differ."""
    differences = Differences([group.setting for group in groups])
    words = [label(group.setting, [key for key in differences.of(group.setting) if key in keys]) for group in groups]
    return {id(group): variant for group, variant in zip(groups, ranking.short(words), strict=True)}


def _cell(
    paper: Paper, row: Mapping[str, Any], i: int, groups: Sequence[SeedGroup], top: Sequence[SeedGroup]
) -> PublishedCell:
    """The runs' value (bold for the best, `top`, and what looks like it), the paper's value and the difference, with
    the same decimals.
    """
    column, theirs = paper.columns[i], row["mean"][i]
    ours = ours_of(groups, column)
    metric = metric_of(column, groups)
    deviation = deviation_of(paper, groups, column, ours)
    digits = _digits(column, groups, deviation)
    bold = bool(ours) and _place(paper, column, groups) == _place(paper, column, top)
    if never := ours.count(math.inf):
        seeds = f"{never} of {count_of(len(ours), 'seed')}"
        mine = cell(states.NEVER_REACHED, seeds, *remarks(groups), muted=True)
    elif not ours and "metric" in column and finished(groups):
        mine = cell(NONE, *remarks(groups), muted=True)
    elif ours and "metric" in column:
        words = spread(ours, metric, deviation, digits)
        mine = cell(words, count_of(len(ours), "seed"), *remarks(groups), bold=bold, sort=mean(ours))
    else:
        mine = result(groups, bold=bold, deviation=deviation, digits=digits)
    off = math.nan if theirs is None else mean(ours) - theirs / paper.scale
    away = cell(difference(off, metric, digits), sort=off) if math.isfinite(off) else cell(NONE, muted=True)
    return PublishedCell(groups, mine, _theirs(paper, row, i), away, metric, ours, deviation, digits)


def _theirs(paper: Paper, row: Mapping[str, Any], i: int) -> Cell:
    """The paper's value, with as many decimals as its deviation: a YAML file's 63.5 may have been 63.50."""
    middle, deviation = row["mean"][i], row["std"][i] if "std" in row else None
    if middle is None:
        return cell(NONE, muted=True)
    if deviation is None:
        return cell(f"{middle}" if paper.scale == 100 else amount(middle), sort=float(middle))
    digits = max(len(f"{each}".partition(".")[2]) for each in (middle, deviation))
    return cell(f"{middle:,.{digits}f} {PLUS_MINUS} {deviation:,.{digits}f}", sort=float(middle))


def _digits(column: Mapping[str, Any], groups: Sequence[SeedGroup], deviation: float) -> int | None:
    given = groups[0].runs[0].digits if groups and "metric" not in column else None
    return decimals([deviation], metric_of(column, groups)) if given is None else given


def _rank(column: Mapping[str, Any], groups: Sequence[SeedGroup]) -> tuple[bool, float]:
    """A rank (larger is better) of the mean. NaN has the lowest; over `MIN_SEEDS` seeds or more, any a higher one than
    over fewer.
    """
    ours = ours_of(groups, column)
    sign = -1 if lower_is_better(metric_of(column, groups)) else 1
    return len(ours) >= MIN_SEEDS, -math.inf if math.isnan(mean(ours)) else sign * mean(ours)


def _place(paper: Paper, column: Mapping[str, Any], groups: Sequence[SeedGroup]) -> tuple[bool, str]:
    """What two cells of a column have in common if they look equal: enough seeds, and the shown mean."""
    ours = ours_of(groups, column)
    deviation = deviation_of(paper, groups, column, ours)
    shown = spread(ours, metric_of(column, groups), deviation, _digits(column, groups, deviation))
    return len(ours) >= MIN_SEEDS, shown.partition(f" {PLUS_MINUS} ")[0]
