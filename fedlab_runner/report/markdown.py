"""A report as markdown, its pictures in files beside it."""

from fedlab_runner.report.content import Cell, Report, Section, Table

FOLDER = "plots"


def document(report: Report) -> str:
    """The text; pictures are `plots/<name>.<kind>`."""
    return f"# {report.title}\n\n{report.subtitle}\n" + "".join(map(_section, report.sections))


def _section(section: Section) -> str:
    parts = [f"## {section.title}", *section.notes, *map(_table, section.tables)]
    for picture in section.pictures:
        parts.append(f"![{picture.caption}]({FOLDER}/{picture.name}.{picture.kind})\n\n{picture.caption}")
    if section.code:
        parts.append("```bash\n" + "\n".join(section.code) + "\n```")
    return "".join(f"\n{part}\n" for part in parts)


def _table(table: Table) -> str:
    lines = [
        [_escape(name) for name in table.header],
        ["---" if i < table.names else "---:" for i in range(len(table.header))],
        *([_cell(each) for each in row] for row in table.rows),
    ]
    title = f"**{table.title}**\n\n" if table.title else ""
    return title + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(cell: Cell) -> str:
    value, *remarks = map(_escape, cell.lines)
    return "<br>".join([f"**{value}**" if cell.bold else value, *remarks])


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
