"""Table and picture of how many clients have each feature block of each class (HyFEM, Fig 11 and 12)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedlab_runner.plots.partition import class_counts
from fedlab_runner.plots.style import STYLE, heat_colours, new_figure, save
from fedlab_runner.utils.escaping import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NUMBERED_CELLS = 400  # larger heat maps have no numbers


def block_table(
    owned: np.ndarray, split: Sequence[np.ndarray], labels: np.ndarray, class_names: Sequence[str]
) -> tuple[list[str], list[list[int]]]:
    """The columns (block, then each class), and a row for each block: the number of clients that have it for a class.

    `owned` [N, d0]: which client holds which block; `split`: the examples of each client; `labels` [n]: their classes.
    """
    has_class = class_counts(split, labels, len(class_names)) > 0
    counts = owned.T.astype(np.int64) @ has_class.astype(np.int64)
    return ["block", *class_names], np.column_stack([np.arange(len(counts)), counts]).tolist()


def plot_blocks(path: Path, columns: Sequence[str], rows: Sequence[Sequence[int]], title: str) -> None:
    """Draws the table of `block_table` as a heat map into an image file. Cells without clients are white."""
    from matplotlib.style import context

    counts = np.array([row[1:] for row in rows])
    unused = int((counts == 0).sum())
    caption = f"Clients with each feature block of each class; {unused} of {counts.size} cells have no client (white)."
    size = max(6.0, 2 + 0.3 * (len(columns) - 1)), max(3.0, 2 + 0.3 * len(counts))
    with context(STYLE):
        figure = new_figure(*size, title, caption)
        _heat_map(figure.subplots(), counts, list(columns[1:]))
        save(figure, path)


def _heat_map(axes: "Axes", counts: np.ndarray, names: list[str]) -> None:
    most, upright = max(int(counts.max(initial=0)), 1), len(names) > 12
    axes.imshow(
        np.ma.masked_equal(counts, 0),
        aspect="auto",
        cmap=heat_colours(most),
        vmin=0.5,
        vmax=most + 0.5,
        interpolation="nearest",
    )
    axes.grid(visible=False)
    axes.set_xticks(
        range(len(names)),
        [label(name) for name in names],
        rotation=90 if upright else 45,
        ha="center" if upright else "right",
        rotation_mode="default" if upright else "anchor",
    )
    axes.set_yticks(range(len(counts)))
    axes.set_ylabel("feature block")
    if counts.size <= MAX_NUMBERED_CELLS:
        for (block, place), count in np.ndenumerate(counts):
            dark = count > 0.6 * most
            axes.text(place, block, str(count), ha="center", va="center", fontsize=8, color="w" if dark else "k")
    axes.tick_params(length=0)
