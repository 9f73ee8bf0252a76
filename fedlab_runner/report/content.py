"""The parts of a report, independent of its format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedlab_runner.methods.registry import Line

MAX_OPACITY = 0.13  # of a band
MAX_STRONG = 5  # bands of a panel that may have this opacity


class Cell(NamedTuple):
    """A cell of a table: the first line is the value, the others are remarks."""

    lines: tuple[str, ...]
    bold: bool = False  # the best
    muted: bool = False  # no result
    sort: float | None = None  # the number by which a column is sorted; None: the text


@dataclass(frozen=True)
class ReportTable:
    """A table whose first `names` columns are texts and whose other columns are numbers.

    `units`: the unit of each column, or empty. `spans`: headings above the columns, each with its number of columns.
    `title`: the caption.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1
    title: str = ""
    units: Sequence[str] = ()
    spans: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Series:
    """The points of a method on a panel, and a band around them (`low` and `high`, empty without a band)."""

    entry: int  # the place of its name and line in the legend
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    unfinished: bool = False  # drawn thin
    points: bool = False  # a marker at each point, and no line


@dataclass(frozen=True)
class Panel:
    """Axes with lines. `x_range` and `y_range` are the ends of the axes. A logarithmic x axis has no zero."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_log: bool = False
    x_whole: bool = False  # ticks of x are integers
    finding: str = ""  # what the panel shows, for people who cannot see it
    diagonal: bool = False  # a thin line from corner to corner: y = x where both axes have the same ends

    @property
    def band_opacity(self) -> float:
        """The opacity of each band: lines and grid stay visible where all bands overlap."""
        return MAX_OPACITY / max(1.0, sum(len(each.low) > 0 for each in self.series) / MAX_STRONG)


class Entry(NamedTuple):
    """A name in a legend, and its line."""

    name: str
    line: Line


@dataclass(frozen=True)
class Chart:
    """Panels with one legend. `name` is part of the names of its files."""

    name: str
    caption: str
    legend: Sequence[Entry]
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Dots:
    """The number of examples of each class at each client, as the area of a dot."""

    name: str
    caption: str
    clients: Sequence[str]
    classes: Sequence[str]
    counts: Sequence[Sequence[float]]  # by client, then by class
    finding: str


@dataclass(frozen=True)
class Section:
    """A heading, sentences, tables and charts, in this order."""

    title: str
    notes: Sequence[str] = ()
    tables: Sequence[ReportTable] = ()
    charts: Sequence[Chart | Dots] = ()
    code: Sequence[str] = field(default_factory=tuple)  # lines for the reader to copy
    level: int = 2  # of the heading


@dataclass(frozen=True)
class Report:
    """The whole page: a title, a line with the counts of runs, sentences with the findings, and the sections."""

    title: str
    subtitle: str
    headline: Sequence[str]
    sections: Sequence[Section]


def cell(*lines: str, bold: bool = False, muted: bool = False, sort: float | None = None) -> Cell:
    """A cell of the lines that are not empty."""
    return Cell(tuple(line for line in lines if line) or ("",), bold, muted, sort)
