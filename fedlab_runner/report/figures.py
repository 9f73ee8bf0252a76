"""Single panels for a paper, as wide as a column and as the text, with real text of 8 pt, and their legend."""

import io
import math
import warnings
from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedlab_runner.report.content import Chart, Entry, Panel, Report
from fedlab_runner.utils.escaping import file_names, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("pdf", "svg")  # file formats of panels
WIDTHS = {"column": 3.3, "text": 6.75}  # inches
HEIGHTS = {"column": 2.1, "text": 2.6}  # inches, by the width's name
POINTS = 8  # the size of text
CHARACTERS_PER_INCH = 13  # of an axis of a panel with the name of the other axis beside it
LEGEND_COLUMNS = 4  # columns of a legend, at most
LEGEND_CHARACTERS = 84  # of a line of a legend, which the text's width has room for
STYLE: dict[str, Any] = {  # matplotlib's settings
    "font.size": POINTS,
    "axes.titlesize": POINTS,
    "axes.labelsize": POINTS,
    "xtick.labelsize": POINTS,
    "ytick.labelsize": POINTS,
    "legend.fontsize": POINTS,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "fedlab",
}


def files(report: Report, kind: str) -> Iterator[tuple[str, bytes]]:
    """The files by name: `<chart>-<panel>-column`, `<chart>-<panel>-text` and `<chart>-legend`."""
    charts = [each for section in report.sections for each in section.charts if isinstance(each, Chart)]
    panels = [(chart, panel) for chart in charts for panel in chart.panels]
    names = file_names(f"{chart.name}-{panel.title.lower()}" for chart, panel in panels)
    for name, (chart, panel) in zip(names, panels, strict=True):
        for width in WIDTHS:
            yield f"{name}-{width}.{kind}", _drawn(panel, chart, width, kind)
    for chart in charts:
        yield f"{chart.name}-legend.{kind}", _legend(chart, kind)


def _drawn(panel: Panel, chart: Chart, width: str, kind: str) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.style import context
    from matplotlib.ticker import MaxNLocator

    with context(STYLE):
        figure = Figure(figsize=(WIDTHS[width], HEIGHTS[width]), layout="constrained")
        axes = figure.subplots()
        for series in panel.series:
            line = chart.legend[series.entry].line
            if len(series.low):
                between = (series.x, series.low, series.high)
                axes.fill_between(*between, color=line.colour, alpha=panel.band_opacity, linewidth=0)
            style = _style(line, len(series.x))
            style |= {"linestyle": "none", "markevery": 1, "alpha": 0.5} if series.points else {}
            axes.plot(series.x, series.y, label=label(chart.legend[series.entry].name), **style)
        if panel.diagonal:
            axes.plot([0, 1], [0, 1], transform=axes.transAxes, color="#9ca3af", linewidth=0.6)
        if panel.x_log:
            axes.set_xscale("log")
        across, up = (
            fill(label(words), int(CHARACTERS_PER_INCH * inches))
            for words, inches in ((panel.x_label, WIDTHS[width]), (panel.y_label, HEIGHTS[width]))
        )
        axes.set(xlim=panel.x_range, ylim=panel.y_range, xlabel=across, ylabel=up)
        if panel.x_whole:
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
        return _saved(figure, kind)


def _legend(chart: Chart, kind: str) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.style import context

    def handle(entry: Entry) -> Line2D:
        return Line2D([], [], **_style(entry.line, 1))

    with context(STYLE):
        handles = [handle(each) for each in chart.legend]
        names = [fill(label(each.name), LEGEND_CHARACTERS, break_on_hyphens=False) for each in chart.legend]
        lines = sum(each.count("\n") + 1 for each in names)
        for columns in range(LEGEND_COLUMNS, 0, -1):
            figure = Figure(figsize=(WIDTHS["text"], 0.2 * math.ceil(lines / columns) + 0.1))
            legend = figure.legend(handles, names, loc="center", ncols=columns, handlelength=2.6)
            if legend.get_window_extent().width <= figure.bbox.width:
                break
        return _saved(figure, kind)


def _style(line: Any, points: int) -> dict[str, Any]:
    every = max(1, points // 6)
    return {"color": line.colour, "linestyle": line.linestyle, "marker": line.marker, "markevery": every}


def _saved(figure: "Figure", kind: str) -> bytes:
    file = io.BytesIO()
    metadata: dict[str, Any] = {"CreationDate": None} if kind == "pdf" else {"Date": None}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # names in other scripts
        figure.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()
