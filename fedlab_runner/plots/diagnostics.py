"""Pictures of metrics that only some algorithms and analyses log, for every run with these metrics."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlab_runner.core.metric_names import MODELS, TRUE_COSINE_PREFIX, cell_of
from fedlab_runner.plots.style import (
    BLUE,
    GREY,
    ORANGE,
    STYLE,
    in_percent,
    marker,
    new_figure,
    over_rounds,
    save,
    series,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]  # as in `metrics.jsonl`
MAX_BANDS = 3  # of a picture: more bands hide each other
COLOURS = 11  # of the style's cycle; further lines are dashed


class DiagnosticPanel(NamedTuple):
    """A panel of a picture. It appears if a key that starts with `key` (any of several) has a finite value."""

    key: str | tuple[str, ...]
    draw: Callable[["Axes", Rows], None]


def plot_diagnostics(folder: Path, rows: Rows, title: str) -> list[Path]:
    """Draws each picture of `PICTURES` for which the rows have values, and returns the files."""
    from matplotlib.style import context

    logged = {key for row in rows for key, value in row.items() if math.isfinite(value)}
    drawn = []
    for name, panels in PICTURES.items():
        there = [panel.draw for panel in panels if any(key.startswith(panel.key) for key in logged)]
        if not there:
            continue
        with context(STYLE):
            figure = new_figure(4.8 * len(there), 3.9, title, CAPTIONS[name])
            for axes, draw in zip(figure.subplots(1, len(there), squeeze=False)[0], there, strict=True):
                draw(axes, rows)
            drawn.append(folder / f"{name}.png")
            save(figure, drawn[-1])
    return drawn


def _coefficients(axes: "Axes", rows: Rows) -> None:
    """Feddle, Figures 6 and 8."""
    over_rounds(axes, "Coefficients", "of normalised anchors")
    _band(axes, rows, "algorithm/coefficients_min", "algorithm/coefficients_max", 0.15, "smallest to largest")
    _band(axes, rows, "algorithm/coefficients_q25", "algorithm/coefficients_q75", 0.35, "middle half")
    _line(axes, rows, "algorithm/coefficients_mean", BLUE, "mean")
    axes.axhline(0, color=GREY, linewidth=0.8)
    _legend(axes)


def _negative_coefficients(axes: "Axes", rows: Rows) -> None:
    over_rounds(axes, "Negative coefficients", "share")
    _line(axes, rows, "algorithm/coefficients_negative", ORANGE, None)
    _percent(axes)


def _directions(axes: "Axes", rows: Rows) -> None:
    """Feddle, Figures 7 and 9."""
    over_rounds(axes, "Server's data against in-domain data", "cosine of coefficients' gradients")
    _line(axes, rows, "algorithm/probe_cosine_first", BLUE, "where the search starts")
    _line(axes, rows, "algorithm/probe_cosine_last", ORANGE, "where it ends")
    _cosine(axes)
    _legend(axes)


def _matrix(axes: "Axes", rows: Rows) -> None:
    """A line for each cell and, for a few, a band of one standard deviation over clients (HyFEM, Figures 4 and 5)."""
    over_rounds(axes, "Over clients", "accuracy")
    cells = dict.fromkeys(cell for row in rows for key in row if (cell := cell_of(key)) is not None)
    for number, cell in enumerate(cells):
        colour, there = f"C{number}", [row for row in rows if cell in row and f"{cell}_std" in row]
        _, deviations = series(there, f"{cell}_std")
        rounds, means = series(there, cell)
        low = [max(0.0, m - d) for m, d in zip(means, deviations, strict=True)]  # no accuracy is beyond these ends
        high = [min(1.0, m + d) for m, d in zip(means, deviations, strict=True)]
        if len(cells) <= MAX_BANDS:
            axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        _line(axes, rows, cell, colour, cell, "-" if number < COLOURS else "--")
    _line(axes, rows, "test/accuracy", GREY, "test")
    _percent(axes)
    _legend(axes)


def _update_cosines(axes: "Axes", rows: Rows) -> None:
    """Feddle, Figure 2a."""
    over_rounds(axes, "Client updates to the true update", "cosine")
    _band(axes, rows, "analysis/update_cosine_min", "analysis/update_cosine_max", 0.2, "smallest to largest")
    _line(axes, rows, "analysis/update_cosine_mean", BLUE, "mean over clients")
    _cosine(axes)
    _legend(axes)


def _true_cosines(axes: "Axes", rows: Rows) -> None:
    """Feddle, Figure 2b."""
    cosines = {
        (row["round"], int(key.removeprefix(TRUE_COSINE_PREFIX))): value
        for row in rows
        for key, value in row.items()
        if key.startswith(TRUE_COSINE_PREFIX)
    }
    rounds = sorted({round for pair in cosines for round in pair})
    cells = [[1.0 if a == b else cosines.get((max(a, b), min(a, b)), math.nan) for b in rounds] for a in rounds]
    axes.set(title="True updates of two rounds", xlabel="round", ylabel="round")
    image = axes.imshow(cells, cmap="RdBu", vmin=-1, vmax=1, origin="lower", aspect="auto")
    ticks = range(0, len(rounds), max(1, len(rounds) // 6))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(list(ticks), [str(rounds[i]) for i in ticks])
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes, label="cosine", ticks=(-1, -0.5, 0, 0.5, 1), pad=0.02)


PICTURES = {  # the panels of each picture, by its file name
    "coefficients": (
        DiagnosticPanel("algorithm/coefficients_mean", _coefficients),
        DiagnosticPanel("algorithm/coefficients_negative", _negative_coefficients),
    ),
    "directions": (DiagnosticPanel("algorithm/probe_cosine_", _directions),),
    "matrix": (DiagnosticPanel(tuple(f"{model}/" for model in MODELS), _matrix),),
    "update_cosines": (
        DiagnosticPanel("analysis/update_cosine_mean", _update_cosines),
        DiagnosticPanel(TRUE_COSINE_PREFIX, _true_cosines),
    ),
}


CAPTIONS = {  # by file name of the picture
    "coefficients": "The coefficients with which the server adds the clients' updates to its model, in each round.",
    "directions": "How the direction of the server's search agrees with the one on in-domain examples.",
    "matrix": "Accuracy by <whose model>/<whose examples>: means over clients; bands, if any: a standard deviation.",
    "update_cosines": "Cosines between clients' updates and the true update, and between true updates of two rounds.",
}


def _line(axes: "Axes", rows: Rows, key: str, colour: str, label: str | None, dash: str = "-") -> None:
    rounds, values = series(rows, key)
    axes.plot(rounds, values, dash, color=colour, marker=marker(len(values)), label=label)


def _band(axes: "Axes", rows: Rows, low: str, high: str, alpha: float, label: str) -> None:
    both = [row for row in rows if low in row and high in row]
    (rounds, lowest), (_, highest) = series(both, low), series(both, high)
    axes.fill_between(rounds, lowest, highest, color=BLUE, alpha=alpha, linewidth=0, label=label)


def _cosine(axes: "Axes") -> None:
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_ylim(-1.05, 1.05)


def _percent(axes: "Axes") -> None:
    in_percent(axes.yaxis)
    axes.set_ylim(bottom=0)


def _legend(axes: "Axes") -> None:
    """Draws the legend below the axes, where it hides no curve."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, columnspacing=1.2, handlelength=1.5)
