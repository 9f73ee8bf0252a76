"""The tables of a report, computed from the rows of `metrics.jsonl` and `timings.jsonl`."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from fedlab_runner.core.metric_names import cell_of, is_share
from fedlab_runner.report.content import Cell, ReportTable, cell
from fedlab_runner.report.formatting import (
    NONE,
    amount,
    difference,
    probability,
    remarks,
    spread,
    times,
    value,
)
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import MIN_SEEDS, SIGNIFICANCE_LEVEL, Difference, holm, mean, paired, reached, total
from fedlab_runner.sweep import states

SUMS = (  # metrics that are summed over the rounds: key, heading
    ("comm/upload_mb", "uploaded, MB"),
    ("comm/download_mb", "downloaded, MB"),
    ("cost/client_gflops", "clients, GFLOPs"),
    ("cost/server_gflops", "server, GFLOPs"),
)
CACHE = "cost/server_cache_mb"
_NOTHING = cell(NONE, muted=True)


def by_condition(groups: Iterable[SeedGroup]) -> dict[str, list[SeedGroup]]:
    """The methods that were run under each condition."""
    found: dict[str, list[SeedGroup]] = {}
    for group in groups:
        found.setdefault(group.condition, []).append(group)
    return found


def finished(groups: Iterable[SeedGroup]) -> list[float]:
    """The finite objectives of some groups."""
    return [each for group in groups for each in group.finished.values() if math.isfinite(each)]


def best(groups: Iterable[SeedGroup]) -> SeedGroup | None:
    """The method with the best mean objective; None where nothing is finished."""
    known = [group for group in groups if finished([group])]
    if not known:
        return None
    sign = -1 if known[0].runs[0].lower_is_better else 1
    return max(known, key=lambda group: sign * mean(finished([group])))


def comparison(groups: Sequence[SeedGroup]) -> ReportTable:
    """Methods down, conditions across: mean and standard deviation over seeds, the best of each column in bold."""
    columns = by_condition(groups)
    winners = [best(members) for members in columns.values()]
    methods = list(dict.fromkeys(group.method for group in groups))
    cells = {(group.method, group.condition): group for group in groups}
    rows = [
        [cell(method)]
        + [
            result(
                [found] if (found := cells.get((method, condition))) else [], bold=found is not None and found is top
            )
            for condition, top in zip(columns, winners, strict=True)
        ]
        for method in methods
    ]
    return ReportTable(["method", *(condition or groups[0].runs[0].metric for condition in columns)], rows)


def result(
    groups: Sequence[SeedGroup], bold: bool = False, more: Sequence[str] = (), deviation: float | None = None
) -> Cell:
    """Mean and standard deviation (or another deviation) of the finished seeds, with remarks on missing ones."""
    if not groups:
        return cell("not run", *more, muted=True)
    values, metric = finished(groups), groups[0].runs[0].metric
    if not values:
        word = states.common(run.state for group in groups for run in group.runs)
        return cell(word, *more, *remarks(groups), muted=True)
    return cell(spread(values, metric, deviation), *more, times(len(values), "seed"), *remarks(groups), bold=bold)


def targets(groups: Sequence[SeedGroup], wanted: Sequence[float]) -> list[float]:
    """The target values of a condition: those wanted, or else 80 % and 95 % of the best mean, in whole percent."""
    if wanted or (top := best(groups)) is None or not is_share(top.runs[0].metric) or top.runs[0].lower_is_better:
        return list(wanted)
    return sorted({math.floor(share * 100 * mean(finished([top]))) / 100 for share in (0.8, 0.95)})


def to_target(groups: Sequence[SeedGroup], wanted: Sequence[float]) -> ReportTable | None:
    """Rounds and uploaded bytes until each target was reached, by method; None without targets."""
    goals = targets(groups, wanted)
    if not goals:
        return None
    metric = groups[0].runs[0].metric
    counts = {(i, goal): [reached(run, goal) for run in group.runs] for i, group in enumerate(groups) for goal in goals}
    rows, header = [], ["method"]
    for goal in goals:
        shown = value(goal, metric, 0) + ("\N{NO-BREAK SPACE}%" if is_share(metric) else "")
        header += [f"rounds to {shown}", f"MB uploaded to {shown}"]
    fewest = {goal: min((_rounds(counts[i, goal]) for i in range(len(groups))), default=math.inf) for goal in goals}
    for i, group in enumerate(groups):
        row = [cell(group.method)]
        for goal in goals:
            rounds = counts[i, goal]
            row += _reached(group, rounds, bold=_rounds(rounds) == fewest[goal] < math.inf)
        rows.append(row)
    return ReportTable(header, rows, title=groups[0].condition)


def _rounds(counts: Sequence[int | None]) -> float:
    """The mean number of rounds where every seed reached the target, else infinity."""
    return mean([each for each in counts if each is not None]) if counts and None not in counts else math.inf


def _reached(group: SeedGroup, rounds: Sequence[int | None], bold: bool) -> list[Cell]:
    pairs = [(run, each) for run, each in zip(group.runs, rounds, strict=True) if each is not None]
    missing = states.of_target(run.state for run, each in zip(group.runs, rounds, strict=True) if each is None)
    if not pairs:
        return [cell(missing[0].partition(" ")[2] if len(missing) == 1 else ", ".join(missing), muted=True), _NOTHING]
    uploaded = [total(run.rows, "comm/upload_mb", until=each) for run, each in pairs]
    return [cell(amount(mean([each for _, each in pairs])), *missing, bold=bold), cell(amount(mean(uploaded)))]


def costs(groups: Sequence[SeedGroup]) -> ReportTable:
    """The costs of the rounds on file, means over seeds."""
    runs = [run for group in groups for run in group.runs]
    sums = [(key, name) for key, name in SUMS if any(key in row for run in runs for row in run.rows)]
    header = ["method", "rounds", *(name for _, name in sums), "largest cache, MB", "seconds a round"]
    rows = []
    for group in groups:
        rounds = [run.done for run in group.runs if run.rows]
        missing = states.counted(run.state for run in group.runs)
        row = [cell(group.method), cell(amount(mean(rounds)), ", ".join(missing))]
        row += [cell(amount(_mean(group, partial(_total, key)))) for key, _ in sums]
        row.append(cell(amount(_mean(group, _largest_cache))))
        row.append(cell(amount(_mean(group, _seconds))))
        rows.append(row)
    return ReportTable(header, rows, title=groups[0].condition)


def matrix(groups: Sequence[SeedGroup]) -> ReportTable | None:
    """The cells of the evaluation matrix at the end of the finished runs, means and deviations over seeds; None where
    no run has any.
    """
    last = {id(run): run.summary["final"] for group in groups for run in group.runs if run.finished}
    cells = sorted({of for row in last.values() for key in row if (of := cell_of(key)) is not None})
    if not cells:
        return None
    rows = []
    for group in groups:
        found = [last[id(run)] for run in group.runs if run.finished]
        row = [cell(group.method)]
        for name in cells:
            values, worst = ([r[key] for r in found if key in r] for key in (name, f"{name}_worst_decile"))
            remark = f"worst tenth {spread(worst, name)}" if worst else ""
            row.append(cell(spread(values, name), remark) if values else cell(NONE, muted=True))
        rows.append(row)
    return ReportTable(["method", *cells], rows, title=groups[0].condition)


def _mean(group: SeedGroup, of: Callable[[Run], float]) -> float:
    """The mean over the runs that have the number."""
    return mean([number for run in group.runs if not math.isnan(number := of(run))])


def _total(key: str, run: Run) -> float:
    return total(run.rows, key)


def _largest_cache(run: Run) -> float:
    return max((row[CACHE] for row in run.rows if CACHE in row), default=math.nan)


def _seconds(run: Run) -> float:
    return mean([row["time/round"] for row in run.timings if "time/round" in row])


def significance(groups: Sequence[SeedGroup]) -> tuple[ReportTable | None, list[str]]:
    """Each method against the best of its condition, paired over seeds, and sentences on untested differences."""
    rows: list[list[Cell]] = []
    few: dict[str, int] = {}
    for condition, members in by_condition(groups).items():
        top = best(members)
        others = [group for group in members if group is not top and finished([group])]
        if top is None or not others:
            continue
        found = [paired(group.finished, top.finished) for group in others]
        if max(each.seeds for each in found) < MIN_SEEDS:
            few[condition] = max(each.seeds for each in found)
            continue
        adjusted = holm([each.p if each.seeds >= MIN_SEEDS else math.nan for each in found])
        for group, each, p in zip(others, found, adjusted, strict=True):
            rows.append([cell(condition or "all"), cell(group.method), cell(top.method), *_verdict(each, p, top)])
    header = ["condition", "method", "against the best", "seeds", "difference", "95 % interval", "p", "p, Holm", ""]
    return (ReportTable(header, rows, names=3) if rows else None), _too_few(few)


def _verdict(each: Difference, adjusted: float, top: SeedGroup) -> list[Cell]:
    metric = top.runs[0].metric
    if each.seeds < MIN_SEEDS:
        said = "too few seeds"
    elif math.isnan(each.p):
        said = "equal" if each.mean == 0 else "the same in every seed"
    else:
        said = "significant" if adjusted < SIGNIFICANCE_LEVEL else "may be chance"
    interval = NONE if math.isnan(each.low) else f"{difference(each.low, metric)} … {difference(each.high, metric)}"
    shown = (str(each.seeds), difference(each.mean, metric), interval, probability(each.p), probability(adjusted), said)
    return [cell(words) for words in shown]


def _too_few(few: Mapping[str, int]) -> list[str]:
    if not few:
        return []
    where = "" if set(few) == {""} else f" under {'; '.join(condition or 'all' for condition in few)}"
    return [
        f"No difference is tested{where}: methods share at most {times(max(few.values()), 'finished seed')} there, and "
        f"at least {MIN_SEEDS} are needed. A difference seen on so few may be chance."
    ]
