"""The pages docs/algorithms.md and docs/datasets.md, made from docstrings and configs: `make docs` writes them."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.generate import readme

FOLDER = readme.README.parent / "docs"
_NOTE = "<!-- Made by `make docs` from docstrings and configs: change those. -->"


def algorithms() -> str:
    """A chapter an algorithm: what it is, its source, hyperparameters, and what is done where its paper is silent."""
    choices = _choices(readme.README.read_text(encoding="utf-8"))
    chapters = [_algorithm(path, choices) for path in readme.files("algorithm")]
    head = "Chosen with `algorithm=<name>`. How they compare and what they log is in the [README](../README.md)."
    return "\n\n".join(["# Algorithms", _NOTE, head, _contents("algorithm"), *chapters]) + "\n"


def datasets() -> str:
    """A chapter a data set: where it is from, its files, licence and keys."""
    chapters = [_dataset(path) for path in readme.files("dataset")]
    head = (
        "Chosen with `dataset=<name>`. Files are looked for in `dataset.root`, which is the environment's "
        "`FEDLAB_DATA` or the folder `data`. What is missing is said with the file and where to get it."
    )
    return "\n\n".join(["# Data sets", _NOTE, head, _contents("dataset"), *chapters]) + "\n"


PAGES: dict[str, Callable[[], str]] = {"algorithms.md": algorithms, "datasets.md": datasets}


def main() -> int:
    """Write the pages anew."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
    return 0


def _algorithm(path: Path, choices: list[tuple[str, str, str]]) -> str:
    cls = readme.target(path)
    mine = [choice for choice in choices if _about(path.stem, cls, *choice)]
    silent = "\n".join(f"- {question} {done}{_key(key)}" for question, done, key in mine)
    after = ["Where the paper is silent:", silent] if mine else []
    return _chapter(path, cls, f"Source: {readme.source(readme.about(cls))}", after=after)


def _about(name: str, cls: type, question: str, done: str, key: str) -> bool:
    """Whether a choice is one of this algorithm: it has the key, the question names it, or it has no key and does."""
    words = question if "algorithm=" in key else f"{question} {done}"
    named = re.search(rf"\b{cls.__name__}\b", words.replace("+", ""), re.IGNORECASE)
    return bool(named or re.search(rf"\balgorithm={name}\b", key))


def _dataset(path: Path) -> str:
    cls = readme.target(path)
    module = readme.paragraphs(sys.modules[cls.__module__].__doc__)
    others = [each for each in module[1:] if not each.startswith("http")]
    layout = getattr(sys.modules[cls.__module__], "LAYOUT", None)
    files = [f"Files below `dataset.root`: {layout}."] if layout else []
    return _chapter(path, cls, readme.linked(readme.about(cls)), before=[*files, *others])


def _chapter(path: Path, cls: type, origin: str, before: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """Name, code, origin and docstring, then the table of keys with paragraphs before and after it."""
    code = Path(*cls.__module__.split(".")).with_suffix(".py")
    head = [f"## {path.stem}", f"`{cls.__name__}` in [{code}](../{code})", origin]
    return "\n\n".join([*head, *readme.paragraphs(cls.__doc__), *before, _keys(path), *after])


def _keys(path: Path) -> str:
    rows = list(readme.keys(path))
    return readme.table(["key", "default", "meaning"], rows).rstrip("\n") if rows else "It has no keys."


def _contents(group: str) -> str:
    return " · ".join(f"[{path.stem}](#{path.stem})" for path in readme.files(group))


def _choices(text: str) -> list[tuple[str, str, str]]:
    """The rows of README's table of choices that papers leave open: question, what is done, key."""
    part = text.split("\n## Choices that papers leave open\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [(question, done, key) for question, done, key in cells]


def _key(key: str) -> str:
    return "" if key == "fixed" else f" ({key})"


if __name__ == "__main__":
    sys.exit(main())
