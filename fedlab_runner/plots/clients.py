"""Table and picture of the clients at the last evaluation: the server's model against the clients' own models."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedlab_runner.plots.style import BLUE, GREY, ORANGE, STYLE, in_percent, new_figure, save
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.files import write_text_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLIENTS_FILE = "clients.csv"  # in the run's folder
# Models that the picture compares with the server's, with their colour and name.
AGAINST = {"client": (BLUE, "client's own"), "tuned": (ORANGE, "tuned")}
MAX_POINT = 30  # the area of a point, in square points; many clients have smaller ones
CAPTION = "A point is a client at the last evaluation; above the line the other model is better than the server's."


class Scores(Protocol):
    """One cell of the evaluation matrix, client by client."""

    @property
    def ids(self) -> np.ndarray: ...  # [k]
    @property
    def accuracy(self) -> np.ndarray: ...  # [k]


def client_table(cells: Mapping[str, Scores], held_out: np.ndarray, num_clients: int) -> tuple[list[str], list[Any]]:
    """The columns (client, held_out, then the accuracy in each cell), and a row for each client (None: not tested)."""
    columns: list[list[Any]] = [[None] * num_clients for _ in cells]
    for column, scores in zip(columns, cells.values(), strict=True):
        for client, accuracy in zip(scores.ids.tolist(), scores.accuracy.tolist(), strict=True):
            column[client] = accuracy
    out = np.isin(np.arange(num_clients), held_out).astype(int).tolist()
    return ["client", "held_out", *cells], [list(row) for row in zip(range(num_clients), out, *columns, strict=True)]


def write_client_table(folder: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Writes clients.csv into a folder. A value is empty for a client that is not tested in the cell."""
    table = io.StringIO(newline="")
    csv.writer(table).writerows([columns, *rows])
    write_text_atomically(folder / CLIENTS_FILE, table.getvalue())


def plot_clients(path: Path, cells: Mapping[str, Scores], title: str) -> bool:
    """Draws each client's accuracy with another model against its accuracy with the server's, a panel for each data.

    Returns False, and writes no file, if no examples are tested with both models.
    """
    from matplotlib.style import context

    data = [cell.partition("/")[2] for cell in cells if cell.startswith("server/")]
    panels = [each for each in data if any(f"{model}/{each}" in cells for model in AGAINST)]
    if not panels:
        return False
    with context(STYLE):
        figure = new_figure(4.4 * len(panels), 4.8, title, CAPTION)
        for axes, each in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _scatter(axes, cells, each)
        save(figure, path)
    return True


def _scatter(axes: "Axes", cells: Mapping[str, Scores], data: str) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    server = cells[f"server/{data}"]
    size = float(np.clip(MAX_POINT * 100 / max(len(server.ids), 1), 4, MAX_POINT))
    for model, (colour, name) in AGAINST.items():
        if (other := cells.get(f"{model}/{data}")) is None:
            continue
        better = float((other.accuracy > server.accuracy).mean())
        label = f"{name}: better for {100 * better:.0f} %"
        axes.scatter(server.accuracy, other.accuracy, s=size, alpha=0.5, color=colour, linewidths=0, label=label)
    low = min(float(scores.accuracy.min()) for cell, scores in cells.items() if cell.endswith(f"/{data}"))
    low = math.floor(10 * low) / 10 - 0.02
    axes.set(xlim=(low, 1.02), ylim=(low, 1.02), xlabel="accuracy of the server's model")
    axes.set(ylabel="accuracy of the other model", title=f"{count_of(len(server.ids), 'client')}, {data}")
    for axis in (axes.xaxis, axes.yaxis):
        in_percent(axis)
    scale = (MAX_POINT / size) ** 0.5  # the legend has points of one size, however small those of many clients are
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=1, handlelength=1, markerscale=scale)
