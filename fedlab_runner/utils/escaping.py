"""Escapes texts of strangers, such as names and errors from a run folder, for the program that shows them."""

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # characters that markdown interprets
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}  # HTML's escapes
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # the last four are their full-width forms
_MAX_NAME_CHARACTERS = 100  # of a file name: far below a file system's 255 bytes, which leaves room for a suffix


def visible(text: str) -> str:
    """The text in one line, with invisible characters as escapes such as `\\x1b`: a terminal's control sequences, line
    ends, marks that change the direction of writing, halves of characters.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\N{NO-BREAK SPACE}" else each.encode("unicode_escape").decode()
        for each in text
    )


def markdown(text: str) -> str:
    """Markdown that shows exactly the text, without HTML, pictures, code, emphasis, formulas or ends of cells. The only
    links are those that a viewer makes of what it shows, such as an address or `#12`.
    """
    text = re.sub("[&<>]", lambda found: _ENTITIES[found[0]], visible(text).strip())
    return _start(_SPECIAL.sub(r"\\\g<0>", text))


_LATEX = {  # LaTeX's escapes
    **{each: f"\\{each}" for each in "{}$&#_%"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", '"': "''", "`": "\\textasciigrave{}"},
    **{each: f"{{{each}}}" for each in "[*"},  # at the beginning of a row they belong to the line break before
    **{"\N{PLUS-MINUS SIGN}": "$\\pm$", "\N{EN DASH}": "--", "\N{NO-BREAK SPACE}": "~", "\N{MINUS SIGN}": "$-$"},
    **{"\N{HORIZONTAL ELLIPSIS}": "\\dots{}", "\N{MULTIPLICATION SIGN}": "$\\times$"},
}


def latex(text: str) -> str:
    """LaTeX that shows exactly the text; characters that a plain document lacks are shown as escapes."""
    return "".join(map(_latex, visible(text)))


def _latex(each: str) -> str:
    if each in _LATEX:
        return _LATEX[each]
    if each.isascii() or (each.isalpha() and ord(each) < 0x180):
        return each
    return "".join(_LATEX.get(part, part) for part in each.encode("unicode_escape").decode())


def _start(text: str) -> str:
    """The text with an escape before a mark of a list or a heading at its start."""
    if re.match(r"[#+=:-]", text):
        return f"\\{text}"
    return re.sub(r"^(\d+)([.)])", r"\1\\\2", text) if re.match(r"\d+[.)](\s|$)", text) else text


def fenced(lines: Iterable[str], language: str = "") -> str:
    """Lines as a block of code in markdown; no line can end the block."""
    shown = [visible(line) for line in lines]
    ticks = max((len(found) for line in shown for found in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([fence + language, *shown, fence])


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV that holds no formula: texts are quoted, and a text that a program would take for a formula begins
    with an apostrophe. Numbers stay numbers; None is empty.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([[_plain(cell) if isinstance(cell, str) else cell for cell in row] for row in rows])
    return text.getvalue()


def short(text: str, limit: int) -> str:
    """The text; or, above `limit` characters, its beginning and a hash, so that two long texts stay different."""
    return text if len(text) <= limit else f"{text[: limit - 9]}\N{HORIZONTAL ELLIPSIS}{_hash(text)}"


def file_name(words: str) -> str:
    """A file name made of these words, with `_` for a space. It has a hash if the words are too long, or hold anything
    else that it cannot have.
    """
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "_", words).strip("-_.")
    if name and len(name) <= _MAX_NAME_CHARACTERS and name == words.replace(" ", "_").strip("-_."):
        return name
    return f"{name[: _MAX_NAME_CHARACTERS - 9]}-{_hash(words)}".lstrip("-")


def file_names(words: Iterable[str]) -> list[str]:
    """File names made of some words each, of which no two are equal, even where a file system ignores case."""
    found: dict[str, str] = {}
    for each in words:
        name, number = file_name(each), 2
        while name.lower() in found:
            name, number = f"{file_name(each)}-{number}", number + 1
        found[name.lower()] = name
    return list(found.values())


def label(text: str) -> str:
    """The text for matplotlib, in which a dollar begins a formula and a leading underscore hides a line's name."""
    text = short(visible(text), 120).replace("$", "\\$")
    return f" {text}" if text.startswith("_") else text


def _plain(text: str) -> str:
    text = visible(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) is not None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
