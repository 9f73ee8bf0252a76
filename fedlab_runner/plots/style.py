"""The common style of all pictures, which need no display."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlab_runner.utils.escaping import label
from fedlab_runner.utils.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2f6db3", "#d9722e", "#6b7280"
STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
    "savefig.dpi": 150,
}


def series(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """The rounds that have a finite value of `key`, and those values."""
    pairs = [(row["round"], row[key]) for row in rows if key in row and math.isfinite(row[key])]
    return [round for round, _ in pairs], [value for _, value in pairs]


def new_figure(width: float, height: float, title: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(label(title), x=0.01, ha="left", color=GREY, fontsize=9)
    return figure


def save(figure: "Figure", path: Path) -> None:
    """Writes the picture in the format of its file name."""
    kind, dpi = path.suffix.removeprefix("."), STYLE["savefig.dpi"]
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=dpi))
