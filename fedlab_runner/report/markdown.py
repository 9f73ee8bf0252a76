"""A report as markdown, with its pictures in files beside it."""

from fedlab_runner.report.content import Cell, Report, ReportTable, Section
from fedlab_runner.utils.escaping import fenced
from fedlab_runner.utils.escaping import markdown as _escape

FOLDER = "plots"  # of the pictures, beside report.md


def document(report: Report) -> str:
    """The text; charts are `plots/<name>.svg`."""
    said = "".join(f"\n{_escape(line)}\n" for line in (report.subtitle, *report.headline))
    return f"# {_escape(report.title)}\n{said}" + "".join(map(_section, report.sections))


def _section(section: Section) -> str:
    parts = [
        f"{'#' * section.level} {_escape(section.title)}",
        *(_escape(note) for note in section.notes if note),
        *map(_table, section.tables),
    ]
    for chart in section.charts:
        caption = _escape(chart.caption)
        parts.append(f"![{caption}]({FOLDER}/{chart.name}.svg)\n\n{caption}")
    if section.code:
        parts.append(fenced(section.code, "bash"))
    return "".join(f"\n{part}\n" for part in parts)


def _table(table: ReportTable) -> str:
    lines = [
        [_escape(name) for name in _header(table)],
        ["---" if i < table.names else "---:" for i in range(len(table.header))],
        *([_cell(each) for each in row] for row in table.rows),
    ]
    title = f"**{_escape(table.title)}**\n\n" if table.title else ""
    return title + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _header(table: ReportTable) -> list[str]:
    """The names of the columns, each with its span heading and unit, because markdown has one line of headings."""
    above = [name for name, count in table.spans for _ in range(count)] or [""] * len(table.header)
    units = table.units or [""] * len(table.header)
    joined = [" ".join(filter(None, [span, name])) for span, name in zip(above, table.header, strict=True)]
    return [f"{name}, {unit}" if unit else name for name, unit in zip(joined, units, strict=True)]


def _cell(cell: Cell) -> str:
    value, *remarks = map(_escape, cell.lines)
    return "<br>".join([f"**{value}**" if cell.bold else value, *remarks])
