"""The pictures of a report: curves with bands over seeds, staleness, partitions."""

import hashlib
import io
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fedlab_runner.core.metric_names import is_share
from fedlab_runner.plots.curves import staleness_counts, staleness_histogram
from fedlab_runner.plots.style import GREY, STYLE, new_figure
from fedlab_runner.report.content import Picture
from fedlab_runner.report.formatting import times
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import cumulative, mean, std
from fedlab_runner.report.tables import best, by_condition
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.escaping import file_name, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PNG = b"\x89PNG\r\n\x1a\n"
MAX_LINES = 10  # of a picture: there are ten colours that can be told apart
MAX_PARTITIONS = 12  # pictures of partitions, and as many of clients
LEGEND_LINE_INCHES = 0.22  # the height of a line of the legend
PAGE_INCHES = 12.4  # the width of the page
LOG_AXIS_RATIO = 100  # from this ratio of the largest to the smallest cost on, the axis is logarithmic


class Curve(NamedTuple):
    """One method's metric over the rounds at which all of the seeds shown have it."""

    label: str
    unfinished: bool
    rounds: list[int]
    means: list[float]
    stds: list[float]  # zero for one seed
    costs: dict[str, list[float]]  # by metric key: cumulative cost at each round, the mean over seeds


COSTS = (
    ("comm/upload_mb", "by upload", "MB uploaded so far"),
    ("cost/client_gflops", "by the clients' work", "GFLOPs so far"),
    ("cost/server_gflops", "by the server's work", "GFLOPs so far"),
)


def convergence(groups: Sequence[SeedGroup]) -> list[Picture]:
    """For each condition, the metric over rounds and over costs, a line for each method."""
    found = []
    for condition, members in by_condition(groups).items():
        shown = _most_interesting(members)
        curves = [curve for group in shown if (curve := curve_of(group)).rounds]
        if not curves:
            continue
        left_out = len(members) - len(shown)
        caption = condition or "all runs"
        if left_out:
            caption += f" (the best {MAX_LINES} of {len(members)} methods; the tables have all)"
        name = file_name(f"curves-{condition}")
        found.append(Picture(name, "svg", _svg(partial(_draw, curves, members[0].runs[0].metric)), caption))
    return found


def curve_of(group: SeedGroup) -> Curve:
    """The curve over the finished seeds; while none is finished, over the others."""
    done = [run for run in group.runs if run.finished]
    runs = done or [run for run in group.runs if _points(run)]
    points = [_points(run) for run in runs]
    rounds = sorted(set.intersection(*(set(each) for each in points))) if points else []
    values = [[each[round] for each in points] for round in rounds]
    logged = [key for key, *_ in COSTS if all(any(key in row for row in run.rows) for run in runs)]
    spent = {key: [cumulative(run.rows, key) for run in runs] for key in logged}
    return Curve(
        f"{group.method} ({times(len(runs), 'seed')}{'' if done else ', unfinished'})",
        not done,
        rounds,
        [mean(each) for each in values],
        [std(each) if len(each) > 1 else 0.0 for each in values],
        {key: [mean([each[round] for each in sums]) for round in rounds] for key, sums in spent.items()},
    )


def staleness(groups: Sequence[SeedGroup]) -> list[Picture]:
    """For each condition, a histogram of staleness, from the runs of the method with the most updates."""
    found: dict[str, Picture] = {}
    for condition, members in by_condition(groups).items():
        group = max(members, key=lambda each: sum(sum(staleness_counts(run.rows).values()) for run in each.runs))
        rows = [row for run in group.runs for row in run.rows]
        counts = staleness_counts(rows)
        if not counts or set(counts) == {0}:
            continue
        caption = f"{condition or 'all runs'}: {group.method}, {times(len(group.runs), 'seed')}"
        found.setdefault(
            str(counts), Picture(file_name(f"staleness-{condition}"), "svg", _svg(partial(_histogram, rows)), caption)
        )
    return list(found.values())


def clients(groups: Sequence[SeedGroup]) -> list[Picture]:
    """The runs' own pictures of their clients, of the smallest seed of each method."""
    found = []
    for group in groups:
        if (picture := _own_picture(group.runs[0], "clients.png")) is not None:
            where = f"{group.condition or 'all runs'}: {group.method}, seed {group.runs[0].seed}"
            found.append(Picture(file_name(f"clients-{where}"), "png", picture, where))
    return found[:MAX_PARTITIONS]


def _own_picture(run: Run, name: str) -> bytes | None:
    """A picture of a run's folder; None where there is none."""
    try:
        picture = untrusted.read_bytes(run.folder / "plots" / name)
    except (FileNotFoundError, untrusted.Unreadable):
        return None
    return picture if picture.startswith(PNG) else None  # people pass the page on, and a link may lead to any file


def partitions(groups: Sequence[SeedGroup]) -> tuple[list[Picture], int]:
    """The runs' own pictures of each different partition of the smallest seeds, and the number left out."""
    found: dict[str, Picture] = {}
    for condition, members in by_condition(groups).items():
        for run in (group.runs[0] for group in members):
            try:
                digest = hashlib.sha256(untrusted.read_bytes(run.folder / "partition.csv")).hexdigest()
            except (FileNotFoundError, untrusted.Unreadable):
                continue
            if (picture := _own_picture(run, "partition.png")) is None:
                continue
            caption = f"{condition or 'all runs'}: seed {run.seed}"
            name = file_name(f"partition-{condition}-seed{run.seed}")
            found.setdefault(digest, Picture(name, "png", picture, caption))
            break  # a seed has one partition under one condition
    pictures = list(found.values())
    return pictures[:MAX_PARTITIONS], max(0, len(pictures) - MAX_PARTITIONS)


def _points(run: Run) -> dict[int, float]:
    """The finite values of the metric by round, of the rounds that count."""
    values = {row["round"]: row[run.metric] for row in run.rows if run.metric in row and row["round"] <= run.rounds}
    return {round: value for round, value in values.items() if math.isfinite(value)}


def _most_interesting(groups: Sequence[SeedGroup]) -> list[SeedGroup]:
    """The best methods, as many as have colours, in their given order."""
    if len(groups) <= MAX_LINES:
        return list(groups)
    left, kept = list(groups), list[SeedGroup]()
    while left and len(kept) < MAX_LINES:
        kept.append(best(left) or left[0])
        left.remove(kept[-1])
    return [group for group in groups if group in kept]


def _draw(curves: Sequence[Curve], metric: str) -> "Figure":
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    costs = [cost for cost in COSTS if any(max(curve.costs.get(cost[0], [0])) > 0 for curve in curves)]
    rows, across = (2, 2) if len(costs) == 3 else (1, 1 + len(costs))
    columns = 2 if len(curves) > 1 and max(len(label(curve.label)) for curve in curves) <= 60 else 1
    legend = LEGEND_LINE_INCHES * -(-len(curves) // columns)
    figure = new_figure(PAGE_INCHES if rows > 1 else 4.2 * across, 3.3 * rows + legend, "")
    first, *others = figure.subplots(rows, across, squeeze=False, sharey=True).flat
    for i, curve in enumerate(curves):
        _line(first, i, curve, [float(round) for round in curve.rounds])
    first.set(title=label(metric), xlabel="round")
    first.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    for axes, (key, title, unit) in zip(others, costs, strict=True):
        _over_cost(axes, curves, key)
        axes.set(title=title, xlabel=unit)
    if is_share(metric):
        first.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", handlelength=1.8, ncols=columns)
    return figure


def _over_cost(axes: "Axes", curves: Sequence[Curve], key: str) -> None:
    """Draws the metric over a cost; where costs differ widely the axis is logarithmic, without zero."""
    known = [(i, curve) for i, curve in enumerate(curves) if key in curve.costs]
    spent = [curve.costs[key][-1] for _, curve in known if curve.costs[key][-1] > 0]
    wide = bool(spent) and max(spent) > LOG_AXIS_RATIO * min(spent)
    for i, curve in known:
        _line(axes, i, curve, [math.nan if wide and x == 0 else x for x in curve.costs[key]])
    if wide:
        axes.set_xscale("log")


def _line(axes: "Axes", i: int, curve: Curve, x: Sequence[float]) -> None:
    style, marker = ("--" if curve.unfinished else "-"), ("o" if sum(map(math.isfinite, x)) <= 2 else "")
    name = label(curve.label)
    axes.plot(x, curve.means, style, color=f"C{i}", marker=marker, markersize=4, linewidth=1.4, label=name)
    if any(curve.stds):
        low, high = ([m + sign * s for m, s in zip(curve.means, curve.stds, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=f"C{i}", alpha=0.15, linewidth=0)


def _histogram(rows: Sequence[Row]) -> "Figure":
    figure = new_figure(6.4, 3.2, "")
    staleness_histogram(figure.subplots(), rows)
    return figure


def _svg(draw: Callable[[], "Figure"]) -> bytes:
    """The SVG of a picture: equal numbers give equal bytes."""
    from matplotlib.style import context

    file = io.BytesIO()
    style = context({**STYLE, "svg.hashsalt": "fedlab", "text.color": "black", "axes.labelcolor": GREY})
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # of a name in another script
        draw().savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
