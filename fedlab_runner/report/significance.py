"""Whether the differences between methods are more than chance."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedlab_runner.report.content import Cell, ReportTable, cell
from fedlab_runner.report.formatting import NONE, difference, differences, probability, unit
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.stats import MIN_SEEDS, SIGNIFICANCE_LEVEL, Difference, holm, paired
from fedlab_runner.report.tables import best, by_condition, decimals_of, finished


class Compared(NamedTuple):
    """A method's difference to the best of its condition, and its p-value, adjusted for all pairs of methods there."""

    difference: Difference
    adjusted: float

    @property
    def significant(self) -> bool:
        """Whether the difference is unlikely to be chance."""
        return self.adjusted < SIGNIFICANCE_LEVEL


def against_best(members: Sequence[SeedGroup]) -> tuple[SeedGroup | None, list[tuple[SeedGroup, Compared]]]:
    """The best method of a condition, and the comparison of each other method with a finished seed."""
    top = best(members)
    others = [group for group in members if group is not top and finished([group])]
    if top is None or not others:
        return top, []
    found = [paired(group.finished, top.finished) for group in others]
    ps = [each.p if each.seeds >= MIN_SEEDS else math.nan for each in found]
    methods = 1 + sum(not math.isnan(p) for p in ps)
    adjusted = holm(ps, methods * (methods - 1) // 2)  # any pair may have been this one: the data chose the best
    return top, [(group, Compared(each, p)) for group, each, p in zip(others, found, adjusted, strict=True)]


def significance(groups: Sequence[SeedGroup]) -> tuple[ReportTable | None, list[str]]:
    """The table of each method against the best of its condition, and sentences on untested differences."""
    rows: list[list[Cell]] = []
    untested: dict[str, list[str]] = {}
    for condition, members in by_condition(groups).items():
        top, others = against_best(members)
        if top is None or not others:
            continue
        if max(each.difference.seeds for _, each in others) < MIN_SEEDS:
            untested.setdefault(top.name, []).append(condition)
            continue
        digits = decimals_of(members)
        for group, each in others:
            words = [cell(condition or "all"), cell(group.name), cell(top.name)]
            rows.append([*words, *_verdict(each, top.runs[0].metric, digits)])
    header = ["condition", "method", "against the best", "seeds", "difference", "95 % interval", "p", "p, Holm", ""]
    measure = unit(groups[0].runs[0].metric)
    units = ["", "", "", "", measure, measure, "", "", ""]
    return (ReportTable(header, rows, names=3, units=units) if rows else None), _too_few(untested)


def _verdict(each: Compared, metric: str, digits: int | None) -> list[Cell]:
    found = each.difference
    if found.seeds < MIN_SEEDS:
        said = "too few seeds"
    elif math.isnan(found.p):
        said = "equal" if found.mean == 0 else "the same in every seed"
    else:
        said = "significant" if each.significant else "may be chance"
    interval = NONE if math.isnan(found.low) else differences(found.low, found.high, metric, digits)
    return [
        cell(str(found.seeds), sort=found.seeds),
        cell(difference(found.mean, metric, digits), sort=found.mean),
        cell(interval, sort=found.low),
        cell(probability(found.p), sort=found.p),
        cell(probability(each.adjusted), sort=each.adjusted),
        cell(said),
    ]


def _too_few(untested: Mapping[str, Sequence[str]]) -> list[str]:
    """Sentences on the conditions without a test, which are given by the best method there."""
    said = []
    for best_one, conditions in untested.items():
        where = "" if conditions == [""] else f" under {'; '.join(condition or 'all' for condition in conditions)}"
        said.append(
            f"No difference is tested{where}: no method shares {MIN_SEEDS} finished seeds with the best, {best_one}. "
            "A difference seen on fewer seeds may be chance."
        )
    return said
