"""Markdown from docstrings: tables, links and paragraphs."""

import inspect
import re
import textwrap

from fedlab_runner.config import listing

LINE_LENGTH = 100  # characters
MAX_CODE_LENGTH = 60  # characters of code in backticks that stay on one line
# A space before a sign that would start a list, a heading or a quotation at the start of a line.
_MARKS = re.compile(r" (?=(?:[-+*>]|#+|\d+[.)])(?: |$))")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table; texts are escaped where markdown would read more into them."""
    lines = [header, ["---"] * len(header), *([_cell(text) for text in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables in a text, without their headers."""
    lines = text.splitlines()
    rules = [i for i, line in enumerate(lines) if re.fullmatch(r"\|( ?:?-+:? ?\|)+", line)]
    headers = {i - 1 for i in rules}
    kept = [line for i, line in enumerate(lines) if line.startswith("| ") and i not in {*rules, *headers}]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in kept]


def paragraphs(docstring: str | None) -> list[str]:
    """The paragraphs of a docstring, a line each."""
    return [" ".join(text.split()) for text in inspect.cleandoc(docstring or "").split("\n\n")]


def first_sentence(docstring: str | None) -> str:
    return listing.first_sentence(paragraphs(docstring)[0])


def wrapped(text: str) -> str:
    """The text in lines of at most LINE_LENGTH characters; tables, headings and short code are not broken."""
    return "\n".join(line if line.startswith(("|", "#")) else _wrapped(line) for line in text.splitlines())


def _wrapped(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    kept = re.sub(r"`[^`]+`", _unbroken, _MARKS.sub("\0", line[len(indent) :]))
    filled = textwrap.fill(
        kept, LINE_LENGTH - len(indent), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return f"{line[: len(indent)]}{filled}".replace("\0", " ")


def _unbroken(code: re.Match[str]) -> str:
    return code[0].replace(" ", "\0") if len(code[0]) <= MAX_CODE_LENGTH else code[0]


def escaped(text: str) -> str:
    """The text with `<` and `*` as signs, not as a tag or emphasis; code is left as it is."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;").replace("*", "\\*") for i, part in enumerate(parts))


def source(about: str) -> str:
    """Of `Name (authors, venue year), place. address` all but the name, as a link."""
    return linked(re.sub(r"^[^()]*\(([^()]*)\)", r"\1", about))


def linked(text: str) -> str:
    """The text as a link to the address in it, or as it is where it has none."""
    address = re.search(r"https?://\S+", text)
    words = re.sub(r"\s*https?://\S+", "", text).rstrip(".")
    return f"[{words}]({address[0]})" if address else words


def _cell(text: str) -> str:
    return escaped(text).replace("|", "\\|")
