"""The common style of all pictures. Each is a PNG with an SVG beside it, has a caption, and needs no display."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, BinaryIO

from fedlab_runner.utils.escaping import label
from fedlab_runner.utils.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

# Colours of the palette of methods (Okabe and Ito, 2008), for lines that belong to no method, and a grey.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6B7280"
CYCLE = (  # colours of lines that belong to no method: the whole palette
    *(BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#000000", "#992244", "#AA66FF", "#551100", "#000088"),
)
MAX_MARKED = 40  # points of a line, above which it has no marker at each point
CHARACTERS_PER_INCH = 15  # of a caption
WIDTH, HEIGHT = 6.4, 3.8  # in inches, of a picture with a legend below; the height without the legend
LEGEND_LINE_INCHES = 0.22  # the height of a line of the legend
LEGEND_CHARACTERS = 66  # of such a line, which the picture's width has room for
DPI = 150  # dots per inch of a PNG
FAST = {"compress_level": 3}  # of PNG files: the default takes three times as long for a tenth less
STYLE = {  # matplotlib's settings
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": f"cycler('color', {[colour[1:] for colour in CYCLE]})",
    "grid.color": "#E5E7EB",
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "savefig.dpi": DPI,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fedlab",  # equal numbers give equal bytes
}


def series(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """The rounds with a finite value of `key`, and these values."""
    pairs = [(row["round"], row[key]) for row in rows if key in row and math.isfinite(row[key])]
    return [round for round, _ in pairs], [value for _, value in pairs]


def new_figure(width: float, height: float, title: str, caption: str = "") -> "Figure":
    """A figure of this size in inches, with the run or sweep as its title and the caption below it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(label(title), x=0.01, ha="left", color=GREY, fontsize=9)
    if caption:
        words = fill(caption, int(CHARACTERS_PER_INCH * width)).replace("$", "\\$")
        figure.supxlabel(words, x=0.01, ha="left", color=GREY, fontsize=8)
    return figure


def figure_with_legend(title: str, names: Iterable[str]) -> "Figure":
    """A figure with room for `legend_below` with these names."""
    lines = sum(in_legend(each).count("\n") + 1 for each in names)
    return new_figure(WIDTH, HEIGHT + LEGEND_LINE_INCHES * lines, title)


def in_legend(name: str) -> str:
    """A name in lines that fit in a legend below the axes."""
    return fill(label(name), LEGEND_CHARACTERS, break_on_hyphens=False)


def legend_below(axes: "Axes", caption: str, several: bool = True) -> None:
    """Draws caption and legend below the axes, one name on a line, because the names of settings are long."""
    handles, names = axes.get_legend_handles_labels() if several else ([], [])
    legend = axes.figure.legend(
        handles,
        names,
        loc="outside lower left",
        handlelength=3,
        title=caption,
        title_fontsize=8,
        alignment="left",
    )
    legend.get_title().set(color=GREY, multialignment="left")


def over_rounds(axes: "Axes", title: str, ylabel: str = "") -> None:
    """Gives the axes a title and an x axis of whole rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.set(title=title, xlabel="round", ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def in_percent(axis: Any) -> None:
    """Makes an axis show shares as percentages."""
    axis.set_major_formatter(lambda share, _: f"{100 * share:.6g} %")


def marker(points: int) -> str:
    """The marker of a line with `points` points."""
    return "o" if points <= MAX_MARKED else ""


def heat_colours(number: int) -> "ListedColormap":
    """`number` colours from pale to dark. White is free for zero."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["magma_r"](np.linspace(0.12, 0.95, number)))  # magma's palest is nearly white


def save(figure: "Figure", path: Path) -> None:
    """Writes the picture as PNG to `path`, and as SVG beside it."""
    write_atomically(path.with_suffix(".png"), lambda file: write_png(figure, file))
    write_atomically(path.with_suffix(".svg"), lambda file: _write_svg(figure, file))


def write_png(figure: "Figure", file: BinaryIO) -> None:
    """Writes the picture as PNG and draws it once; `savefig` would lay it out and draw it twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.dpi = DPI
    with _any_script():
        FigureCanvasAgg(figure).print_png(file, pil_kwargs=FAST)  # type: ignore[no-untyped-call]  # matplotlib has no type for it


def _write_svg(figure: "Figure", file: BinaryIO) -> None:
    """Writes a picture that `write_png` has laid out as SVG."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    figure.set_layout_engine("none")
    with _any_script():
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})  # type: ignore[no-untyped-call]  # as above


@contextmanager
def _any_script() -> Iterator[None]:
    """A context without warnings of names in other scripts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield
