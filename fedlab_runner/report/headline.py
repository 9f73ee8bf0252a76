"""The headline of a report: the best methods, and missing results."""

import math
from collections import Counter
from collections.abc import Sequence
from textwrap import shorten

from fedlab_runner.core.metric_names import is_share
from fedlab_runner.report import summaries
from fedlab_runner.report.content import ReportTable, Section, cell
from fedlab_runner.report.formatting import value, with_unit
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import confidence, mean
from fedlab_runner.report.tables import by_condition, decimals_of, finished, winners
from fedlab_runner.sweep import states
from fedlab_runner.utils.counting import count_of

MAX_BLOCKS = 6  # blocks of conditions that the headline names
TITLE_KEYS = 3  # of a block's title
MAX_TITLE_CHARACTERS = 60  # of a block's names
MAX_ERROR_CHARACTERS = 300  # of a shown error


def best_of(title: str, groups: Sequence[SeedGroup]) -> str:
    """A sentence on the best method of a block, with its interval."""
    where = f"{title}: " if title else ""
    conditions = by_condition(groups).values()
    tops = [found for members in conditions if (found := winners(members))]
    if not tops:
        return f"{where}no run is finished." if title else "No run is finished."
    top = tops[0][0]
    metric, less = top.runs[0].metric, top.runs[0].lower_is_better
    if len(conditions) == 1:
        values, digits = finished([top]), decimals_of(groups)
        low, high = confidence(values)
        if is_share(metric):
            low, high = max(low, 0.0), min(high, 1.0)
        sure = (
            "" if math.isnan(low) else f", 95 % interval {value(low, metric, digits)} to {value(high, metric, digits)}"
        )
        rivals = len([each for each in groups if finished([each])])
        number, seeds = with_unit(mean(values), metric, digits), f"mean of {count_of(len(values), 'seed')}{sure}"
        if rivals == 1:
            return f"{where}{top.name} has {number} ({seeds if len(values) > 1 else '1 seed'})."
        return f"{where}best is {top.name} with {number} ({seeds}; {count_of(rivals, 'method')} compared)."
    scores, _ = summaries.scores_of(groups)
    counts = Counter(each.name for found in tops for each in found)
    most = max(counts, key=lambda name: counts[name])
    said = f"{most} is best in {counts[most]} of {count_of(len(tops), 'condition')}"
    if len(scores) >= 2:
        centres = {name: summaries.iqm(samples) for name, samples in scores.items()}
        top_name = (min if less else max)(centres, key=lambda name: centres[name])
        low, high = summaries.interval(scores[top_name])
        sure = "" if math.isnan(low) else f", 95 % interval {value(low, metric)} to {value(high, metric)}"
        said += f"; {'it' if top_name == most else top_name} has the best interquartile mean, "
        said += f"{with_unit(centres[top_name], metric)}{sure}"
    return f"{where}{said}."


def short_title(title: str) -> str:
    """The first keys of a block's title, those of its data and model."""
    words = title.split(" ")
    return " ".join(words[:TITLE_KEYS]) + (" …" if len(words) > TITLE_KEYS else "")


def block_title(title: str, groups: Sequence[SeedGroup]) -> str:
    """The heading of a block: its keys, or the names of its methods where no key tells it from the other blocks."""
    names = ", ".join(dict.fromkeys(each.name for each in groups))
    return short_title(title) or shorten(names, MAX_TITLE_CHARACTERS, placeholder=" …")


def headline(blocks: Sequence[tuple[str, Sequence[SeedGroup]]], runs: Sequence[Run], unbegun: int) -> list[str]:
    """The sentences under the title."""
    shown = [(block_title(title, groups) if len(blocks) > 1 else "", groups) for title, groups in blocks[:MAX_BLOCKS]]
    said = [best_of(title, groups) for title, groups in shown]
    if len(blocks) == 1:
        said = [each[0].upper() + each[1:] for each in said]
    if len(blocks) > MAX_BLOCKS:
        said.append(f"{len(blocks) - MAX_BLOCKS} more blocks of conditions are below.")
    missing = states.counted([*(run.state for run in runs), *(states.NOT_BEGUN for _ in range(unbegun))])
    if missing:
        said.append(f"Without a result: {', '.join(missing)}.")
    if warned := [run for run in runs if run.warnings]:
        said.append(f"{count_of(len(warned), 'run')} ended with a warning; the list of runs has it.")
    return said


def failures(groups: Sequence[SeedGroup]) -> Section | None:
    """Why runs failed: each error once for each method; None if no run failed."""
    found: dict[tuple[str, str], list[tuple[str, Run]]] = {}
    for each in groups:
        for run in each.runs:
            if run.state == states.FAILED:
                found.setdefault((each.name, str(run.error)), []).append((each.condition, run))
    if not found:
        return None
    rows = []
    for (name, error), those in found.items():
        conditions = list(dict.fromkeys(condition or "all" for condition, _ in those))
        where = "; ".join(conditions[:4]) + (f"; and {len(conditions) - 4} more" if len(conditions) > 4 else "")
        words = shorten(error, MAX_ERROR_CHARACTERS, placeholder=" …")
        rows.append([cell(name), cell(words), cell(where), cell(str(len(those)), sort=len(those))])
    return Section("What failed", tables=[ReportTable(["method", "error", "condition", "runs"], rows, names=3)])
