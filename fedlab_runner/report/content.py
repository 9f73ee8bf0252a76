"""What a report consists of, whatever it is written as."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Cell(NamedTuple):
    """One cell of a table: the first line is the value, others are remarks on it."""

    lines: tuple[str, ...]
    bold: bool = False  # the best
    muted: bool = False  # no result


@dataclass(frozen=True)
class ReportTable:
    """The first `names` columns are texts, the others numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """`name` is that of its file beside the markdown, `kind` svg or png."""

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
    """Everything on the page."""

    title: str
    subtitle: str
    sections: Sequence[Section]


def cell(*lines: str, bold: bool = False, muted: bool = False) -> Cell:
    """A cell of some lines, without the empty ones."""
    return Cell(tuple(line for line in lines if line) or ("",), bold, muted)
