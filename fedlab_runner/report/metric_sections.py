"""Sections on metrics that only some runs have. A section appears if a run has one of its metrics."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from fedlab_runner.methods.registry import Line
from fedlab_runner.plots.curves import staleness_counts
from fedlab_runner.plots.partition import PARTITION_FILE
from fedlab_runner.report.content import Chart, Dots, Entry, Panel, Section, Series
from fedlab_runner.report.curves import curve_of, most_interesting, over_rounds
from fedlab_runner.report.formatting import amount
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import mean
from fedlab_runner.report.tables import by_condition
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.escaping import file_name

MAX_PANELS = 8  # of a section
MAX_PARTITIONS = 8  # pictures of partitions on a page
MAX_CLIENTS = 60  # of a picture of a partition
MAX_CLASSES = 40  # of a picture of a partition
# Columns of a partition's table before its classes.
FIRST_COLUMNS = ("client", "examples", "train", "validation", "test", "held_out")


class Metrics(NamedTuple):
    """The metrics of a section, by the beginnings of their keys. `timed`: they are in `timings.jsonl`."""

    title: str
    note: str
    keys: tuple[str, ...]
    timed: bool = False


SECTIONS = (  # in the order of the page
    Metrics(
        "Models that travel, and regular models",
        "Test metrics of models that clients hold or pass on, besides the model of the objective.",
        ("regular/accuracy", "meme/accuracy"),
    ),
    Metrics(
        "Architectures",
        "Mean test accuracy of the clients with each architecture of a mix, numbered as in its file.",
        ("test/accuracy_model",),
    ),
    Metrics(
        "Loss on the clients' examples",
        "Of the server's model, each example alike.",
        ("server/train_weighted_loss",),
    ),
    Metrics(
        "Topology",
        "How many clients a client averages with, how far their models are from their mean, and how many models "
        "are sent in a round.",
        ("algorithm/neighbours", "algorithm/consensus_distance", "comm/models"),
    ),
    Metrics(
        "Blocks and matching",
        "The width of the server's model, the cost of the assignments and the share of neurons that moved.",
        ("algorithm/server_width", "algorithm/matching_cost", "algorithm/moved_neurons"),
    ),
    Metrics(
        "Coefficients",
        "What the server's search found.",
        (
            "algorithm/coefficients_mean",
            "algorithm/coefficients_negative",
            "algorithm/probe_cosine_last",
            "algorithm/atlas_size",
            "algorithm/gamma",
            "algorithm/fallback_cosine",
        ),
    ),
    Metrics(
        "Directions of updates",
        "Cosine of clients' updates to the true update.",
        ("analysis/update_cosine_mean", "analysis/update_cosine_negative"),
    ),
    Metrics(
        "Seconds",
        "The duration of a round and of its evaluation, on the machine of each run. Machines differ, and runs side by "
        "side on one machine slow each other.",
        ("time/round", "time/evaluation"),
        timed=True,
    ),
)


def sections(groups: Sequence[SeedGroup], lines: Mapping[str, Line], most: int, level: int) -> list[Section]:
    """The sections with metrics of some run."""
    found = []
    for each in SECTIONS:
        charts = []
        for condition, members in by_condition(groups).items():
            panels, legend = _panels(members, each, lines, most)
            if panels:
                name = file_name(f"{each.title}-{condition}")
                charts.append(Chart(name, condition or "All runs", legend, panels))
        if charts:
            found.append(Section(each.title, [each.note], charts=charts, level=level))
    return found


def _panels(
    members: Sequence[SeedGroup], metrics: Metrics, lines: Mapping[str, Line], most: int
) -> tuple[list[Panel], list[Entry]]:
    shown = most_interesting(members)
    rows = [row for group in shown for run in group.runs for row in (run.timings if metrics.timed else run.rows)]
    keys = [key for key in dict.fromkeys(chain.from_iterable(rows)) if key.startswith(metrics.keys)]
    wanted = [key for start in metrics.keys for key in keys if re.fullmatch(rf"{re.escape(start)}([_/]\d+)?", key)]
    panels = []
    for key in wanted[:MAX_PANELS]:
        curves = [curve_of(group, key, metrics.timed) for group in shown]
        if any(any(curve.means) for curve in curves):
            panels.append(over_rounds(curves, key, key, most))
    kept = sorted({series.entry for panel in panels for series in panel.series})
    legend = [Entry(shown[i].name, lines[shown[i].name]) for i in kept]
    renumbered = {old: new for new, old in enumerate(kept)}
    return [
        replace(panel, series=[replace(each, entry=renumbered[each.entry]) for each in panel.series])
        for panel in panels
    ], legend


def staleness(groups: Sequence[SeedGroup], lines: Mapping[str, Line]) -> list[Chart]:
    """For each condition, the share of updates up to each staleness, a line for each method with late updates."""
    found: list[Chart] = []
    for condition, members in by_condition(groups).items():
        legend, series, means = list[Entry](), list[Series](), list[tuple[float, str]]()
        for group in most_interesting(members):
            counts = staleness_counts([row for run in group.runs if not run.damaged for row in run.rows])
            total = sum(counts.values())
            if not counts or set(counts) == {0}:
                continue
            x, y, so_far = [0.0], [0.0], 0.0
            for age, count in counts.items():
                x += [float(age), float(age)]
                y += [100 * so_far / total, 100 * (so_far + count) / total]
                so_far += count
            series.append(Series(len(legend), x, y))
            legend.append(Entry(group.name, lines[group.name]))
            means.append((sum(age * count for age, count in counts.items()) / total, group.name))
        if not series:
            continue
        ends_of_means = dict.fromkeys(f"{mean:.2f}" for mean in (min(means)[0], max(means)[0]))
        said = f"The mean staleness is {' to '.join(ends_of_means)} rounds."
        ends = (0.0, max(1.0, max(each.x[-1] for each in series)))
        label = "rounds from start to arrival"
        panel = Panel("At most so late", label, "updates, %", series, ends, (0, 100), x_whole=True, finding=said)
        found.append(Chart(file_name(f"staleness-{condition}"), f"{condition or 'All runs'}. {said}", legend, [panel]))
    return found


def partitions(groups: Sequence[SeedGroup]) -> tuple[list[Dots], int]:
    """Each different partition of the smallest seeds, and the number of partitions left out."""
    found: dict[str, Dots] = {}
    for condition, members in by_condition(groups).items():
        for run in (group.runs[0] for group in members):
            table = rows_of(run, PARTITION_FILE)
            if (picture := _dots(table, run, condition)) is not None:
                found.setdefault(str(table), picture)
                break  # a seed has one partition under one condition
    pictures = list(found.values())
    return pictures[:MAX_PARTITIONS], max(0, len(pictures) - MAX_PARTITIONS)


def _dots(table: Sequence[Sequence[str]], run: Run, condition: str) -> Dots | None:
    """The picture of a partition's table. Its classes, which may have any names, are the columns after the known ones.

    None if the table has no classes or no clients.
    """
    known = len(FIRST_COLUMNS)
    if not table or tuple(table[0][:known]) != FIRST_COLUMNS:
        return None
    classes, rows = table[0][known:], [row for row in table[1:] if row[0]]
    if not classes or not rows:
        return None
    counts = [[number_of(each) for each in row[known:]] for row in rows]
    totals = [number_of(row[1]) for row in rows]
    largest = [max(row) / sum(row) for row in counts if sum(row) > 0]
    sizes = " to ".join(dict.fromkeys((amount(min(totals)), amount(max(totals)))))
    said = f"{count_of(len(rows), 'client')} with {sizes} examples"
    said += (
        f"; on average {100 * mean(largest):.0f} % of a client's examples are of its largest class" if largest else ""
    )
    first = [f"{MAX_CLIENTS} clients"] * (len(rows) > MAX_CLIENTS)
    first += [f"{MAX_CLASSES} of {len(classes)} classes"] * (len(classes) > MAX_CLASSES)
    where = f"{condition or 'All runs'}, seed {run.seed}: {said}."
    where += f" The picture shows the first {' and the first '.join(first)}." if first else ""
    name = file_name(f"partition-{condition}-seed{run.seed}")
    drawn = [row[:MAX_CLASSES] for row in counts[:MAX_CLIENTS]]
    return Dots(name, where, [row[0] for row in rows[:MAX_CLIENTS]], classes[:MAX_CLASSES], drawn, said)


def table_of(run: Run, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of a run's folder, by the names of its columns; empty if it cannot be read."""
    header, *rows = rows_of(run, name) or [[]]
    return [dict(zip(header, row, strict=True)) for row in rows]


def rows_of(run: Run, name: str) -> list[list[str]]:
    """The lines of a CSV file of a run's folder, each as long as the first one; empty if it cannot be read."""
    try:
        text = untrusted.read_bytes(run.folder / name).decode()
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except (FileNotFoundError, untrusted.Unreadable, UnicodeDecodeError, csv.Error):
        return []
    width = len(rows[0]) if rows else 0
    return [(row + [""] * width)[:width] for row in rows]


def number_of(text: object) -> float:
    """The number in a cell of a file; 0 for what is no number, infinite or huge."""
    try:
        number = float(str(text))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and abs(number) < 1e12 else (math.nan if number != number else 0.0)
