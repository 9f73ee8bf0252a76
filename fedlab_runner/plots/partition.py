"""Table and picture of a partition: clients by classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedlab_runner.plots.style import BLUE, ORANGE, STYLE, heat_colours, new_figure, save
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.escaping import csv_text, label
from fedlab_runner.utils.files import write_text_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTITION_FILE = "partition.csv"  # in the run's folder
MAX_CLIENTS_IN_ORDER = 100  # above which the picture sorts clients by size
MAX_NAMED_CLASSES = 30  # above which the picture names no classes
MAX_COLUMNS = 1000  # of the heat map, about its pixels; of more clients a column shows the mean of neighbours
MAX_BARS = 30  # of the histogram


def class_counts(split: Sequence[np.ndarray], labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The number of examples by client and class, int64 [N, C]; labels [n] are class indices."""
    if not len(split):
        return np.zeros((0, num_classes), np.int64)
    clients = np.repeat(np.arange(len(split)), [len(part) for part in split])
    cells = clients * num_classes + labels[np.concatenate(split)]
    return np.bincount(cells, minlength=len(split) * num_classes).reshape(len(split), num_classes)


def partition_table(
    split: Sequence[np.ndarray], labels: np.ndarray, class_names: Sequence[str], uses: Mapping[str, Sequence[int]]
) -> tuple[list[str], list[list[int]]]:
    """The columns (client, examples, each of `uses`, each class), and a row for each client.

    `uses` has a number for each client. Labels finer than the named classes (the strata of CIFAR-100's superclasses)
    get numbers.
    """
    counts = class_counts(split, labels, num_classes := _num_classes(labels, class_names))
    columns = ["client", "examples", *uses, *_names(class_names, num_classes)]
    more = [np.asarray(each, np.int64)[: len(counts)] for each in uses.values()]
    table = np.column_stack([np.arange(len(counts)), counts.sum(1), *more, counts])
    return columns, table.tolist()


def write_partition_table(
    folder: Path,
    split: Sequence[np.ndarray],
    labels: np.ndarray,
    class_names: Sequence[str],
    uses: Mapping[str, Sequence[int]],
) -> None:
    """Writes partition.csv (the table) and partition.md (a summary of it) into a folder."""
    columns, rows = partition_table(split, labels, class_names, uses)
    write_text_atomically(folder / PARTITION_FILE, csv_text([columns, *rows]))
    counts = class_counts(split, labels, len(columns) - 2 - len(uses))
    write_text_atomically(folder / "partition.md", _summary(counts))


def plot_partition(
    path: Path, split: Sequence[np.ndarray], labels: np.ndarray, class_names: Sequence[str], title: str
) -> None:
    """Draws the classes of every client as a heat map, and the histogram of client sizes, into an image file."""
    from matplotlib.style import context

    num_classes = _num_classes(labels, class_names)
    counts = class_counts(split, labels, num_classes)
    height = min(8.0, max(3.6, 1.6 + 0.22 * min(num_classes, MAX_NAMED_CLASSES)))
    numbers = f"{count_of(len(counts), 'client')}, {count_of(counts.sum(), 'example')}"
    caption = f"Examples of each class at each client: {numbers}."
    with context(STYLE):
        figure = new_figure(12, height + 0.2, title, caption)
        left, right = figure.subplots(1, 2, width_ratios=(3.2, 1))
        _heat_map(figure, left, counts, _names(class_names, num_classes))
        _histogram(right, counts.sum(1))
        save(figure, path)


def _num_classes(labels: np.ndarray, class_names: Sequence[str]) -> int:
    return max(len(class_names), int(labels.max(initial=-1)) + 1)


def _names(class_names: Sequence[str], num_classes: int) -> list[str]:
    return list(class_names) if len(class_names) == num_classes else [f"class {c}" for c in range(num_classes)]


def _summary(counts: np.ndarray) -> str:
    sizes = counts.sum(1)
    largest = counts.max(1, initial=0)[sizes > 0] / sizes[sizes > 0]
    lines = [
        f"{count_of(len(sizes), 'client')} ({(sizes == 0).sum():,} empty), {count_of(sizes.sum(), 'example')}, "
        f"{counts.shape[1]:,} classes",
        "",
        "| of a client | min | median | max |",
        "|---|---|---|---|",
        _line("examples", sizes),
        _line("classes", (counts > 0).sum(1)),
        _line("share of its largest class", largest),
    ]
    return "\n".join(lines) + "\n"


def _line(name: str, values: np.ndarray) -> str:
    numbers = [values.min(), np.median(values), values.max()] if len(values) else [0, 0, 0]
    return f"| {name} | " + " | ".join(f"{number:.6g}" for number in numbers) + " |"


def _heat_map(figure: "Figure", axes: "Axes", counts: np.ndarray, names: list[str]) -> None:
    """Draws classes down and clients across. White is zero; the colour grows with the square root of the count."""
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    each_client, each_class = len(counts) <= MAX_CLIENTS_IN_ORDER, len(names) <= MAX_NAMED_CLASSES
    num_clients, across, values = len(counts), "client", counts.astype(np.float64)
    if not each_client:
        values, across = values[np.argsort(-counts.sum(1), kind="stable")], "clients, largest first"
        if (together := -(-num_clients // MAX_COLUMNS)) > 1:
            starts = np.arange(0, num_clients, together)
            widths = np.diff(starts, append=num_clients)
            values = np.add.reduceat(values, starts, axis=0) / widths[:, None]
            across += f" (means of {together} neighbours)"
    image = axes.imshow(
        np.ma.masked_equal(values.T, 0),
        aspect="auto",
        cmap=heat_colours(256),
        norm=PowerNorm(0.5, vmin=0, vmax=values.max(initial=0) or 1),
        interpolation="nearest",
        extent=(-0.5, max(num_clients, 1) - 0.5, len(names) - 0.5, -0.5),
    )
    axes.set(title="Classes of each client", xlabel=across)
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if each_class:
        axes.set_yticks(range(len(names)), [label(name) for name in names])
        axes.set_yticks(np.arange(0.5, len(names) - 1), minor=True)
    else:
        axes.set_ylabel("class")
    if each_client:
        axes.set_xticks(np.arange(0.5, num_clients - 1), minor=True)
    axes.grid(visible=True, which="minor", color="#E5E7EB", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(True)
    figure.colorbar(image, ax=axes, label="examples", pad=0.01, aspect=30).outline.set_visible(False)


def _histogram(axes: "Axes", sizes: np.ndarray) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    width = -(-(high - low + 1) // MAX_BARS)  # whole numbers for each bar, so that rounding leaves no bar empty
    heights = np.bincount((sizes - low) // width)
    lefts = low - 0.5 + width * np.arange(len(heights))
    axes.bar(lefts, heights, width, align="edge", color=BLUE, edgecolor="white", linewidth=0.4)
    title = "Sizes of clients"
    if len(sizes):
        median = float(np.median(sizes))
        axes.axvline(median, color=ORANGE, linestyle="--")
        title += f"\nmedian {median:,.6g}"  # the panel is too narrow for one line
    margin = max(1.0, 0.04 * (high - low))
    axes.set_xlim(low - 0.5 - margin, high + 0.5 + margin)
    axes.set(title=title, xlabel="examples of a client", ylabel="clients")
    axes.grid(axis="x", visible=False)
    for axis, bins in ((axes.xaxis, 4), (axes.yaxis, 8)):
        axis.set_major_locator(MaxNLocator(nbins=bins, integer=True, min_n_ticks=1, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter("{x:,.0f}")
