"""The parts of a report, independent of its format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell of a table: the first line is the value, the others are remarks."""

    lines: tuple[str, ...]
    bold: bool = False  # the best
    muted: bool = False  # no result


@dataclass(frozen=True)
class ReportTable:
    """A table whose first `names` columns are texts and whose other columns are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture; `name` and `kind` (svg or png) make the file name beside the markdown."""

    name: str
    kind: str
    content: bytes
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading, sentences, tables and pictures, in this order."""

    title: str
    notes: Sequence[str] = ()
    tables: Sequence[ReportTable] = ()
    pictures: Sequence[Picture] = ()
    code: Sequence[str] = field(default_factory=tuple)  # lines to be copied


@dataclass(frozen=True)
class Report:
    """The whole page."""

    title: str
    subtitle: str
    sections: Sequence[Section]


def cell(*lines: str, bold: bool = False, muted: bool = False) -> Cell:
    """A cell of the lines that are not empty."""
    return Cell(tuple(line for line in lines if line) or ("",), bold, muted)
