"""A report as markdown, its pictures in files beside it."""

from fedlab_runner.report.content import Cell, Report, ReportTable, Section
from fedlab_runner.utils.escaping import fenced
from fedlab_runner.utils.escaping import markdown as _escape

FOLDER = "plots"


def document(report: Report) -> str:
    """The text; pictures are `plots/<name>.<kind>`."""
    return f"# {_escape(report.title)}\n\n{_escape(report.subtitle)}\n" + "".join(map(_section, report.sections))


def _section(section: Section) -> str:
    parts = [f"## {_escape(section.title)}", *map(_escape, section.notes), *map(_table, section.tables)]
    for picture in section.pictures:
        caption = _escape(picture.caption)
        parts.append(f"![{caption}]({FOLDER}/{picture.name}.{picture.kind})\n\n{caption}")
    if section.code:
        parts.append(fenced(section.code, "bash"))
    return "".join(f"\n{part}\n" for part in parts)


def _table(table: ReportTable) -> str:
    lines = [
        [_escape(name) for name in table.header],
        ["---" if i < table.names else "---:" for i in range(len(table.header))],
        *([_cell(each) for each in row] for row in table.rows),
    ]
    title = f"**{_escape(table.title)}**\n\n" if table.title else ""
    return title + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(cell: Cell) -> str:
    value, *remarks = map(_escape, cell.lines)
    return "<br>".join([f"**{value}**" if cell.bold else value, *remarks])
