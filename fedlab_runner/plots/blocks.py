"""Table and picture of how many clients have each feature block of each class (HyFEM, Fig 11 and 12)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedlab_runner.plots.partition import class_counts
from fedlab_runner.plots.style import save

MAX_NUMBERED_CELLS = 400  # larger heat maps have no numbers


def block_table(
    owned: np.ndarray, split: Sequence[np.ndarray], labels: np.ndarray, class_names: Sequence[str]
) -> tuple[list[str], list[list[int]]]:
    """The columns (block, then each class), and a row for each block: the clients that have it for the class.

    `owned` [N, d0]: which client holds which block; `split`: the examples of each client; `labels` [n]: their classes.
    """
    has_class = class_counts(split, labels, len(class_names)) > 0
    counts = owned.T.astype(np.int64) @ has_class.astype(np.int64)
    return ["block", *class_names], np.column_stack([np.arange(len(counts)), counts]).tolist()


def plot_blocks(path: Path, columns: Sequence[str], rows: Sequence[Sequence[int]], title: str) -> None:
    """Draws the table of `block_table` as a heat map into an image file; cells without a client are black."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    counts = np.array([row[1:] for row in rows])
    most, names = int(counts.max(initial=0)), list(columns[1:])
    figure = Figure(figsize=(max(6.0, 2 + 0.3 * len(names)), max(3.0, 1.8 + 0.3 * len(counts))), layout="constrained")
    FigureCanvasAgg(figure)
    unused = int((counts == 0).sum())
    told = f"clients with each block of each class; {unused} of {counts.size} cells have no client"
    figure.suptitle(f"{title}\n{told}", fontsize=11)
    axes = figure.subplots()
    colours = ListedColormap([(0.0, 0.0, 0.0, 1.0), *colormaps["YlGnBu"](np.linspace(0.1, 0.8, max(most, 1)))])
    axes.imshow(counts, aspect="auto", cmap=colours, vmin=-0.5, vmax=max(most, 1) + 0.5, interpolation="nearest")
    upright = len(names) > 12
    axes.set_xticks(
        range(len(names)),
        names,
        rotation=90 if upright else 45,
        ha="center" if upright else "right",
        rotation_mode="default" if upright else "anchor",
    )
    axes.set_yticks(range(len(counts)))
    axes.set_ylabel("feature block")
    if counts.size <= MAX_NUMBERED_CELLS:
        for (block, label), count in np.ndenumerate(counts):
            dark = count == 0 or count > 0.6 * most
            axes.text(label, block, str(count), ha="center", va="center", fontsize=8, color="w" if dark else "k")
    axes.tick_params(length=0)
    save(figure, path)
