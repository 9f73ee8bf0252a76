"""A report as one HTML page that loads no other file."""

import base64
import re
from html import escape as escape_html

from fedlab_runner.report.content import Cell, Picture, Report, ReportTable, Section
from fedlab_runner.utils.escaping import visible

_STYLE = """
:root { color-scheme: light; --line: #e5e7eb; --grey: #6b7280; --blue: #2f6db3; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: #111827; background: #fff;
  max-width: 1240px; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .8rem;
  border-top: 1px solid var(--line); } h3 { font-size: .95rem; margin: 1.4rem 0 .4rem; color: var(--grey); }
p { max-width: 62rem; margin: .4rem 0; } .sub { color: var(--grey); }
nav { margin: 1rem 0 0; }
nav a { color: var(--blue); text-decoration: none; margin-right: 1.1rem; white-space: nowrap; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .87rem; }
th, td { padding: .38rem .8rem; border-bottom: 1px solid var(--line); vertical-align: top; text-align: right; }
th { font-weight: 600; vertical-align: bottom; border-bottom: 2px solid #9ca3af; }
th span { display: inline-block; }
.name { text-align: left; overflow-wrap: break-word; min-width: 6rem; }
td:first-child, th:first-child { position: sticky; left: 0; background: #fff; padding-left: 0; }
tbody tr:hover td { background: #f3f6fa; }
td small { display: block; color: var(--grey); font-size: .8em; } td .value { white-space: nowrap; }
td.name .value { white-space: normal; } td.name:first-child .value { white-space: nowrap; }
td small { text-wrap: balance; } td.name:not(:first-child) small { min-width: 14rem; }
td.best .value { font-weight: 700; } td.muted .value { color: var(--grey); }
figure { margin: 1.2rem 0; } figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--grey); font-size: .85rem; }
pre { background: #f6f7f9; padding: .8rem 1rem; overflow-x: auto; font-size: .8rem; line-height: 1.45; }
summary { cursor: pointer; color: var(--blue); }
"""


def page(report: Report) -> str:
    """The page."""
    links = "\n".join(f'<a href="#{_anchor(s.title)}">{escape(s.title)}</a>' for s in report.sections)
    body = "".join(map(_section, report.sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(report.title)}</h1>\n<p class="sub">{escape(report.subtitle)}</p>\n<nav>{links}</nav>\n'
        f"{body}</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    parts = [f'<h2 id="{_anchor(section.title)}">{escape(section.title)}</h2>\n']
    parts += [f"<p>{escape(note)}</p>\n" for note in section.notes]
    parts += [_table(table) for table in section.tables]
    parts += [_picture(picture) for picture in section.pictures]
    if section.code:
        lines = "\n".join(map(escape, section.code))
        parts.append(f"<details><summary>Commands</summary><pre>{lines}</pre></details>\n")
    return "".join(parts)


def _table(table: ReportTable) -> str:
    head = "".join(
        f'<th class="name">{escape(name)}</th>' if i < table.names else f"<th>{_broken(name)}</th>"
        for i, name in enumerate(table.header)
    )
    rows = "".join(
        "<tr>" + "".join(_cell(each, i < table.names) for i, each in enumerate(row)) + "</tr>\n" for row in table.rows
    )
    title = f"<h3>{escape(table.title)}</h3>\n" if table.title else ""
    return (
        f'{title}<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n'
    )


def _cell(cell: Cell, name: bool) -> str:
    kinds = " ".join(word for word, there in (("name", name), ("best", cell.bold), ("muted", cell.muted)) if there)
    value, *remarks = map(escape, (*_parted(cell.lines[0]), *cell.lines[1:]) if name else cell.lines)
    small = "".join(f"<small>{remark}</small>" for remark in remarks)
    return f'<td class="{kinds}"><span class="value">{value}</span>{small}</td>'


def _parted(name: str) -> list[str]:
    """A method's name, and the keys that tell it from other methods of that name."""
    first, _, keys = name.partition(" ")
    return [first, keys] if "=" in keys and "=" not in first else [name]


def _picture(picture: Picture) -> str:
    kind = {"svg": "image/svg+xml", "png": "image/png"}[picture.kind]
    data = base64.b64encode(picture.content).decode()
    caption = escape(picture.caption)
    return f'<figure><figcaption>{caption}</figcaption><img src="data:{kind};base64,{data}" alt="{caption}"></figure>\n'


def _broken(heading: str) -> str:
    """A heading with a line for each override in it."""
    return "<br>".join(f"<span>{escape(part)}</span>" for part in (heading.split(" ") if "=" in heading else [heading]))


def escape(text: str) -> str:
    """The text as content or as an attribute's value."""
    return escape_html(visible(text))


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
