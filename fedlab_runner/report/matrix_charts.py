"""Whose accuracy: charts of the cells of the evaluation matrix, over rounds and over clients."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain

from fedlab_runner.core.metric_names import MODELS, cell_of
from fedlab_runner.methods.registry import Line
from fedlab_runner.plots.clients import AGAINST, CLIENTS_FILE
from fedlab_runner.report.content import Chart, Entry, Panel, Series
from fedlab_runner.report.curves import curve_of, most_interesting, over_rounds
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.metric_sections import number_of, table_of
from fedlab_runner.report.runs import Run
from fedlab_runner.report.tables import by_condition
from fedlab_runner.utils.escaping import file_name

MAX_POINTS = 1000  # clients of a method on a panel


def matrix_charts(groups: Sequence[SeedGroup], lines: Mapping[str, Line], most: int) -> list[Chart]:
    """For each condition, the cells of the evaluation matrix over rounds, and their spread over clients at the end."""
    found = []
    for condition, members in by_condition(groups).items():
        shown = most_interesting(members)
        logged = dict.fromkeys(chain.from_iterable(row for group in shown for run in group.runs for row in run.rows))
        keys = [key for key in logged if key.partition("/")[0] in MODELS and cell_of(key) == key]
        panels = [over_rounds([curve_of(group, key) for group in shown], key, key, most) for key in keys]
        panels += [panel for key in keys if (panel := _over_clients(shown, key)) is not None]
        panels += [panel for key in keys if (panel := _against_server(shown, key)) is not None]
        legend = [Entry(group.name, lines[group.name]) for group in shown]
        if panels:
            found.append(Chart(file_name(f"matrix-{condition}"), condition or "All runs", legend, panels))
    return found


def _over_clients(groups: Sequence[SeedGroup], key: str) -> Panel | None:
    """The share of clients below each accuracy in a cell, at the end of the run of the smallest seed."""
    lines, worst = [], []
    for i, group in enumerate(groups):
        values = sorted(100 * each for (each,) in _columns(group.runs[0], key))
        if len(values) > 1:
            x = [each for value in values for each in (value, value)]
            y = [100 * share / len(values) for n in range(len(values)) for share in (n, n + 1)]
            lines.append(Series(i, x, y))
            worst.append((values[0], group.name))
    if not lines:
        return None
    said = f"The lowest accuracy of a client is {max(worst)[0]:.1f} % with {max(worst)[1]}, the highest of the lowest."
    low, high = min(each.x[0] for each in lines), max(each.x[-1] for each in lines)
    ends = (low, high) if low < high else (low - 1, high + 1)
    return Panel(
        f"{key}: clients below an accuracy",
        "accuracy of a client, %",
        "clients, %",
        lines,
        ends,
        (0, 100),
        finding=said,
    )


def _against_server(groups: Sequence[SeedGroup], key: str) -> Panel | None:
    """Each client's accuracy with another model over that with the server's on the same examples, at the end of the run
    of the smallest seed; None where no run has both.
    """
    model, _, data = key.partition("/")
    if model not in AGAINST:
        return None
    points, better = [], []
    for i, group in enumerate(groups):
        both = _columns(group.runs[0], f"server/{data}", key)[:MAX_POINTS]
        if both:
            x, y = zip(*both, strict=True)
            points.append(Series(i, [100 * each for each in x], [100 * each for each in y], points=True))
            better.append((sum(mine > theirs for theirs, mine in both) / len(both), group.name))
    if not points:
        return None
    name = AGAINST[model][1]
    said = f"With {max(better)[1]} the {name} model is better than the server's for {100 * max(better)[0]:.0f} % "
    said += "of the clients, the largest share; each marker is a client, and above the line its other model is better."
    low = min(min(each) for series in points for each in (series.x, series.y))
    ends = (10.0 * math.floor(low / 10) - 2, 102.0)
    return Panel(
        f"{key} against server/{data}",
        "server's model, %",
        f"{name} model, %",
        points,
        ends,
        ends,
        diagonal=True,
        finding=said,
    )


def _columns(run: Run, *keys: str) -> list[tuple[float, ...]]:
    """The accuracies of each client that has all of these cells, as shares."""
    rows = [tuple(number_of(row.get(key) or "nan") for key in keys) for row in table_of(run, CLIENTS_FILE)]
    return [row for row in rows if all(math.isfinite(each) and 0 <= each <= 1 for each in row)]
