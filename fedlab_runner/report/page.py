"""A report as one HTML page that loads no other file.

Templates escape every text, and the page's policy runs no script except its own, so that no text of a run can act.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from fedlab_runner.methods.registry import Line
from fedlab_runner.report import svg
from fedlab_runner.report.content import Cell, Chart, Dots, Entry, Panel, Report, ReportTable
from fedlab_runner.utils.escaping import visible

TEMPLATES = "templates"  # folder of the templates, beside this module
WIDEST_DEVIATION = 14  # in characters, for which there is a class that aligns deviations


def page(report: Report) -> str:
    """The page."""
    from markupsafe import Markup

    script = _source("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text: str = (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            style=Markup(_source("style.css") + _colours(report)),  # from this package and the registry of methods
            script=Markup(script),
            script_hash=f"sha256-{digest}",
        )
    )
    return text.lstrip()


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    made.filters |= {
        "broken": _broken,
        "dots": lambda picture: _safe(svg.text(svg.dots(picture))),
        "deviated": _deviated,
        "deviation_widths": _deviation_widths,
        "panel": _panel,
        "parted": _parted,
        "swatch": lambda line: _safe(svg.text(svg.swatch(line))),
    }
    made.tests |= {
        "a_chart": lambda picture: isinstance(picture, Chart),
        "sortable": lambda cell: cell.sort is not None and math.isfinite(cell.sort),
    }
    return made


def _source(name: str) -> str:
    return files("fedlab_runner.report").joinpath(TEMPLATES, name).read_text("utf-8")


def _safe(markup: str) -> Any:
    from markupsafe import Markup

    return Markup(markup)


def _panel(panel: Panel, legend: Sequence[Entry]) -> Any:
    return _safe(svg.text(svg.panel(panel, legend)))


def _broken(heading: str) -> Any:
    """A heading with a line for each override in it, with places between its words where it may break."""
    from markupsafe import Markup

    parts = heading.split(" ") if "=" in heading else [heading]
    pieces = [Markup("<wbr>").join(re.split(r"(?<==)|(?<=\.)(?=[a-z_])", visible(part))) for part in parts]
    return Markup("").join(Markup("<span>{}</span>").format(each) for each in pieces)


def _parted(name: str) -> list[str]:
    """A method's name, and the keys that distinguish it from other methods of that name."""
    words = name.split(" ")
    first = next((i for i, word in enumerate(words) if "=" in word), len(words))
    keys = words[first:]
    if not first or not all("=" in word for word in keys):  # no method's name: a condition, or a sentence
        return [name]
    return [" ".join(words[:first]), " ".join(keys)] if keys else [name]


def _deviated(value: str) -> tuple[str, str]:
    """A mean, and the text from its ± on."""
    mean, sign, rest = value.partition(" \N{PLUS-MINUS SIGN} ")
    return mean, f"\N{PLUS-MINUS SIGN}\N{NO-BREAK SPACE}{rest}" if sign else ""


def _deviation_widths(table: ReportTable) -> list[int]:
    """The characters that the deviations of each column take, so that means stand below each other."""
    rows = [row for row in table.rows if len(row) == len(table.header)]
    columns: Iterable[tuple[Cell, ...]] = zip(*rows, strict=True) if rows else [()] * len(table.header)
    return [
        min(WIDEST_DEVIATION, max((len(_deviated(cell.lines[0])[1]) for cell in column), default=0))
        if i >= table.names
        else 0
        for i, column in enumerate(columns)
    ]


def _colours(report: Report) -> str:
    """The style of the lines' colours on a dark page and of the widths of deviations."""
    lines: dict[str, Line] = {}
    for section in report.sections:
        for chart in section.charts:
            if not isinstance(chart, Dots):
                lines |= {svg.css_class(entry.line): entry.line for entry in chart.legend}
    dark = "".join(f".{name}{{stroke:{line.dark};fill:{line.dark}}}\n" for name, line in lines.items())
    widths = "".join(f".d{i}{{min-width:{i}ch}}\n" for i in range(1, WIDEST_DEVIATION + 1))
    return f"{widths}@media screen and (prefers-color-scheme: dark) {{\n{dark}.dot{{fill:#77ddff}}\n}}\n"
