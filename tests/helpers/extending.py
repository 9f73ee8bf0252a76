"""The examples of the pages on extending, and a `fedlab` that finds them."""

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedlab_runner import train
from fedlab_runner.utils import own_modules
from tests.helpers.in_process import own_handlers
from tests.helpers.paths import ROOT

INDEX = ROOT / "docs" / "extending.md"
PAGES = {path.stem: path for path in sorted((ROOT / "docs" / "extending").glob("*.md"))}


def files(page: Path) -> dict[str, str]:
    """The files that a page shows."""
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page.read_text(), re.S))


def command(page: Path) -> list[str]:
    """The arguments of the command that a page shows."""
    (line,) = re.findall(r"^fedlab (.*)$", page.read_text(), re.M)
    return shlex.split(line)


EXAMPLES = {path: text for page in PAGES.values() for path, text in files(page).items()}
MODULES = [Path(path).stem for path in EXAMPLES if path.endswith(".py")]

Fedlab = Callable[..., tuple[int, str]]


@pytest.fixture
def fedlab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Fedlab]:
    """`fedlab` in this process, in a folder with the examples of all pages: the exit code and stderr."""
    for path, text in EXAMPLES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_modules, "_folders", set())

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedlab", *arguments])
        return train.main(), capsys.readouterr().err

    with own_handlers():
        yield run
    for name in MODULES:
        sys.modules.pop(name, None)
