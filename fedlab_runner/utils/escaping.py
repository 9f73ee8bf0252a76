"""Texts of strangers, made harmless for what shows them: names, config values and errors come out of run folders."""

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # the last four are their full-width forms
_NAME = 100  # characters of a file name, far below the 255 bytes of a file system, for a suffix and a temporary name


def visible(text: str) -> str:
    """The text in one line, with what is no visible character written as an escape, such as `\\x1b`: control sequences
    of terminals, line ends, marks that change the direction of writing, halves of characters.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\N{NO-BREAK SPACE}" else each.encode("unicode_escape").decode()
        for each in text
    )


def markdown(text: str) -> str:
    """The text as markdown that shows exactly it: no HTML, link, picture, code, emphasis, formula or cell's end."""
    text = re.sub("[&<>]", lambda found: _ENTITIES[found[0]], visible(text).strip())
    return _start(_SPECIAL.sub(r"\\\g<0>", text))


def _start(text: str) -> str:
    """A list's or a heading's mark at the start loses its meaning."""
    if re.match(r"[#+=:-]", text):
        return f"\\{text}"
    return re.sub(r"^(\d+)([.)])", r"\1\\\2", text) if re.match(r"\d+[.)](\s|$)", text) else text


def fenced(lines: Iterable[str], language: str = "") -> str:
    """Lines as a block of markdown's code, which they cannot end."""
    shown = [visible(line) for line in lines]
    ticks = max((len(found) for line in shown for found in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([fence + language, *shown, fence])


def comma_separated(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV in which no program finds a formula: texts are quoted, and one that would be taken for a formula has
    an apostrophe before it. Numbers stay numbers; None is empty.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([[_plain(cell) if isinstance(cell, str) else cell for cell in row] for row in rows])
    return text.getvalue()


def short(text: str, most: int) -> str:
    """The text, or its beginning and a hash of all of it: still another one for another text."""
    return text if len(text) <= most else f"{text[: most - 9]}\N{HORIZONTAL ELLIPSIS}{_hash(text)}"


def file_name(words: str) -> str:
    """A name for a file about these words, always the same; with a hash where they are too long or do not show."""
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "_", words).strip("-_.")
    if len(name) <= _NAME and re.fullmatch(r"[A-Za-z0-9_.=, -]*", words):
        return name
    return f"{name[: _NAME - 9]}-{_hash(words)}"


def label(text: str) -> str:
    """The text for a picture, where dollars would begin a formula and a first underscore hides a line's name."""
    text = short(visible(text), 120).replace("$", "\\$")
    return f" {text}" if text.startswith("_") else text


def _plain(text: str) -> str:
    text = visible(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) is not None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
