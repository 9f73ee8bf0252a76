"""When the runs of a report reached a target of the objective."""

import math
from collections.abc import Sequence

from fedlab_runner.core.metric_names import is_share
from fedlab_runner.report.content import Cell, ReportTable, cell
from fedlab_runner.report.formatting import decimals, scale, spread, unit
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.stats import mean, reached, std, total
from fedlab_runner.report.tables import NOTHING, best, enough_seeds, finished
from fedlab_runner.sweep import states


def targets(groups: Sequence[SeedGroup], wanted: Sequence[float]) -> list[float]:
    """The target values of a condition: `wanted`, or else 80 % and 95 % of the best mean, in whole percent."""
    if wanted or (top := best(groups)) is None or not is_share(top.runs[0].metric) or top.runs[0].lower_is_better:
        return list(wanted)
    goals = {math.floor(share * 100 * mean(finished([top]))) / 100 for share in (0.8, 0.95)}
    return sorted(goals - {0.0})  # every run reaches 0 %


def to_target(groups: Sequence[SeedGroup], wanted: Sequence[float]) -> ReportTable | None:
    """Rounds and uploaded bytes until each target was reached, by method; None without targets."""
    goals = targets(groups, wanted)
    if not goals:
        return None
    metric = groups[0].runs[0].metric
    columns: list[list[Cell]] = []
    for goal in goals:
        counts = [[reached(run, goal) for run in group.runs] for group in groups]
        enough = enough_seeds(list(map(_known, groups, counts)))
        means = [_rounds(found) if each else math.inf for found, each in zip(counts, enough, strict=True)]
        fewest = min(means, default=math.inf)
        pairs = [_reached_by(group, found) for group, found in zip(groups, counts, strict=True)]
        digits = [decimals([std(each[i]) for each in pairs], "") for i in (0, 1)]
        columns += [[], []]
        for group, found, average, (rounds, uploaded) in zip(groups, counts, means, pairs, strict=True):
            states_of = [run.state for run, each in zip(group.runs, found, strict=True) if each is None]
            missing = states.of_target(states_of)
            if not rounds:
                word = missing[0].partition(" ")[2] if len(missing) == 1 else ", ".join(missing)
                columns[-2].append(cell(word, muted=True))
                columns[-1].append(NOTHING)
                continue
            bold = average == fewest < math.inf
            columns[-2].append(cell(spread(rounds, "", digits=digits[0]), *missing, bold=bold, sort=mean(rounds)))
            columns[-1].append(cell(spread(uploaded, "comm/upload_mb", digits=digits[1]), sort=mean(uploaded)))
    rows = [[cell(group.name), *(column[i] for column in columns)] for i, group in enumerate(groups)]
    spans = [("", 1), *((f"to {_goal(goal, metric)}", 2) for goal in goals)]
    units = ["", *(each for _ in goals for each in ("", "MB"))]
    header = ["method", *(each for _ in goals for each in ("rounds", "uploaded"))]
    return ReportTable(header, rows, title=groups[0].condition, units=units, spans=spans)


def _goal(goal: float, metric: str) -> str:
    shown = f"{scale(metric) * goal:.6g}"
    return f"{shown}\N{NO-BREAK SPACE}{unit(metric)}".rstrip()


def _rounds(counts: Sequence[int | None]) -> float:
    """The mean number of rounds if every seed reached the target, else infinity."""
    return mean([each for each in counts if each is not None]) if counts and None not in counts else math.inf


def _known(group: SeedGroup, counts: Sequence[int | None]) -> int:
    """The number of seeds of which it is known whether they reach a target."""
    return sum(run.finished or each is not None for run, each in zip(group.runs, counts, strict=True))


def _reached_by(group: SeedGroup, rounds: Sequence[int | None]) -> tuple[list[float], list[float]]:
    """The rounds of the seeds that reached a target, and the megabytes that they uploaded until then."""
    pairs = [(run, each) for run, each in zip(group.runs, rounds, strict=True) if each is not None]
    return [float(each) for _, each in pairs], [total(run.rows, "comm/upload_mb", until=each) for run, each in pairs]
