"""The headline of a report: the best methods, and missing results."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import shorten

from fedlab_runner.report import summaries
from fedlab_runner.report.content import ReportTable, Section, cell
from fedlab_runner.report.folders import NoRun
from fedlab_runner.report.formatting import MAX_TIED, not_finite, together, value, with_unit
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import MIN_SEEDS, interval, mean
from fedlab_runner.report.tables import best, by_condition, decimals_of, finished, winners
from fedlab_runner.sweep import states
from fedlab_runner.sweep.error_kinds import kind
from fedlab_runner.tracking.ending import NO_EVALUATION
from fedlab_runner.utils.counting import count_of

MAX_BLOCKS = 6  # blocks of conditions that the headline names
TITLE_KEYS = 3  # of a block's title
MAX_TITLE_CHARACTERS = 60  # of a block's names
MAX_ERROR_CHARACTERS = 300  # of a shown error


def best_of(title: str, groups: Sequence[SeedGroup]) -> str:
    """A sentence on the best method of a block, with its interval."""
    where = f"{title}: " if title else ""
    conditions = [members for members in by_condition(groups).values() if any(finished([each]) for each in members)]
    if not conditions:
        done = any(each.finished for each in groups)
        said = (
            "no run is finished" if not done else "no run has a finite result" if not_finite(groups) else NO_EVALUATION
        )
        return f"{where}{said if title else said.capitalize()}."
    if len(conditions) == 1:
        (only,) = conditions
        under = "" if len(by_condition(groups)) == 1 else f"{only[0].condition}: "
        return where + under + _of_one_condition(only, winners(only))
    compared = [members for members in conditions if sum(bool(finished([each])) for each in members) > 1]
    if not compared:
        names = dict.fromkeys(each.name for each in groups if finished([each]))
        said = "no two methods have a result under one condition"
        said = f"{next(iter(names))} is the only method with a result" if len(names) == 1 else said
        return f"{where}{said if title else said[0].upper() + said[1:]}."
    return where + _of_conditions(groups, [winners(members) for members in compared], len(compared) < len(conditions))


def _of_one_condition(groups: Sequence[SeedGroup], tops: Sequence[SeedGroup]) -> str:
    metric, digits = tops[0].runs[0].metric, decimals_of(groups)
    number = with_unit(mean(finished(tops[:1])), metric, digits)
    over = _of_each({top.name: _seeds_and_interval(finished([top]), metric, digits) for top in tops})
    counts = [len(values) for each in groups if (values := finished([each]))]
    if len(counts) == 1:
        return f"{tops[0].name} has {number} ({over})."
    compared = f"{count_of(len(counts), 'method')} compared"
    if min(counts) < MIN_SEEDS <= max(counts):
        compared += f", {sum(count >= MIN_SEEDS for count in counts)} with at least {MIN_SEEDS} seeds"
    are, each = ("are", " each") if len(tops) > 1 else ("is", "")
    said = f"best {are} {together([top.name for top in tops])} with {number}{each} ({over}; {compared})"
    if (other := _ahead(groups, tops)) is not None:
        values = finished([other])
        said += f"; {other.name} has {with_unit(mean(values), metric, digits)} with {count_of(len(values), 'seed')}"
    return f"{said}."


def _of_conditions(groups: Sequence[SeedGroup], tops: Sequence[Sequence[SeedGroup]], alone: bool) -> str:
    """`tops`: the best under each condition with several methods. `alone`: whether others have one method."""
    run = tops[0][0].runs[0]
    metric, digits = run.metric, run.digits
    counts = Counter(each.name for found in tops for each in found)
    most = max(counts.values())
    names = [name for name, count in counts.items() if count == most]
    said = f"{together(names)} {'is' if len(names) == 1 else 'are each'} best in "
    said += f"{most} of {count_of(len(tops), 'condition')}" + (" with two methods or more" if alone else "")
    scores, _ = summaries.scores_of(groups)
    if len(scores) >= 2:
        centres = {name: summaries.iqm(samples) for name, samples in scores.items()}
        first = summaries.leaders(centres, run.lower_is_better)
        has = f"{together(first)} share" if len(first) > 1 else "it has" if first == names else f"{first[0]} has"
        ends = {name: _interval(*summaries.interval(scores[name]), metric, digits) for name in first}
        said += f"; {has} the best interquartile mean, {with_unit(centres[first[0]], metric, digits)}"
        said += f" ({_of_each(ends)})" if any(ends.values()) else ""
    ahead = sum(_ahead(members, winners(members)) is not None for members in by_condition(groups).values())
    if ahead:
        said += f"; in {count_of(ahead, 'condition')} a method with fewer than {MIN_SEEDS} seeds has a better mean"
    return f"{said}."


def _seeds_and_interval(values: Sequence[float], metric: str, digits: int | None) -> str:
    seeds = count_of(len(values), "seed")
    if len(values) == 1:
        return seeds
    return ", ".join(filter(None, [f"mean of {seeds}", _interval(*interval(values, metric), metric, digits)]))


def _interval(low: float, high: float, metric: str, digits: int | None) -> str:
    ends = f"{value(low, metric, digits)} to {value(high, metric, digits)}"
    return "" if math.isnan(low) else f"95 % interval {ends}"


def _of_each(words: Mapping[str, str]) -> str:
    """What is said of some methods, with their names where it differs."""
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    told = list(words.items())[:MAX_TIED]
    return "; ".join(f"{name}: {each or 'no interval'}" for name, each in told)


def _ahead(groups: Sequence[SeedGroup], tops: Sequence[SeedGroup]) -> SeedGroup | None:
    """The method with too few seeds to be the best of a condition that has a better mean than the best; or None."""
    other = best(each for each in groups if len(finished([each])) < MIN_SEEDS)
    if other is None:
        return None
    its, least = mean(finished([other])), mean(finished(tops[:1]))
    return other if (its < least if other.runs[0].lower_is_better else its > least) else None


def short_title(title: str) -> str:
    """The first keys of a block's title, which tell it from most others."""
    words = title.split(" ")
    return " ".join(words[:TITLE_KEYS]) + (" …" if len(words) > TITLE_KEYS else "")


def block_title(title: str, groups: Sequence[SeedGroup]) -> str:
    """The heading of a block: its keys, or the names of its methods where no key tells it from the other blocks."""
    names = ", ".join(dict.fromkeys(each.name for each in groups))
    return short_title(title) or shorten(names, MAX_TITLE_CHARACTERS, placeholder=" …")


def headline(
    blocks: Sequence[tuple[str, Sequence[SeedGroup]]], runs: Sequence[Run], others: Sequence[NoRun]
) -> list[str]:
    """The sentences under the title."""
    shown = [(block_title(title, groups) if len(blocks) > 1 else "", groups) for title, groups in blocks[:MAX_BLOCKS]]
    said = [best_of(title, groups) for title, groups in shown]
    if len(blocks) == 1:
        said = [each[0].upper() + each[1:] for each in said]
    if len(blocks) > MAX_BLOCKS:
        more = len(blocks) - MAX_BLOCKS
        said.append(f"{count_of(more, 'more block')} of conditions {'is' if more == 1 else 'are'} below.")
    known = [*(run.state for run in runs), *(job.state for job in others)]
    missing = states.counted(known, not_finite(group for _, groups in blocks for group in groups))
    if missing:
        said.append(f"Without a result: {', '.join(missing)}.")
    if warned := [run for run in runs if run.warnings]:
        said.append(f"{count_of(len(warned), 'run')} ended with a warning; the list of runs has it.")
    return said


def failures(groups: Sequence[SeedGroup], others: Sequence[NoRun]) -> Section | None:
    """Why runs failed, and jobs without a run: each error once for each method; None if nothing failed.

    Errors of two runs that differ only in numbers and in the run's folder are one, and the first is shown.
    """
    failed = [
        (each.name, kind(str(run.error), run.folder.name), str(run.error), each.condition or "all")
        for each in groups
        for run in each.runs
        if run.state == states.FAILED
    ]
    jobs = [job for job in others if job.state == states.FAILED]
    failed += [("\N{EN DASH}", kind(job.error, ""), job.error, job.words) for job in jobs]
    if not failed:
        return None
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, what, error, condition in failed:
        found.setdefault((name, what), []).append((error, condition))
    rows = []
    for (name, _), those in found.items():
        error, conditions = those[0][0], list(dict.fromkeys(condition for _, condition in those))
        where = "; ".join(conditions[:4]) + (f"; and {len(conditions) - 4} more" if len(conditions) > 4 else "")
        words = shorten(error, MAX_ERROR_CHARACTERS, placeholder=" …")
        rows.append([cell(name), cell(words), cell(where), cell(str(len(those)), sort=len(those))])
    note = "Of errors that differ only in numbers or in the run's folder, the table has the first."
    table = ReportTable(["method", "error", "condition", "runs"], rows, names=3)
    return Section("What failed", [note] if len({each[:3] for each in failed}) > len(found) else [], [table])
