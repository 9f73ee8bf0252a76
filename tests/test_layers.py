"""The package's layers: a circle, an arrow upwards and a folder without a layer are each found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"


def lint(folder: Path) -> "subprocess.CompletedProcess[str]":
    """The contracts of pyproject.toml, held against the package in a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_layers_hold() -> None:
    ended = lint(ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Contracts: 2 kept, 0 broken." in ended.stdout


@pytest.mark.parametrize(
    ("path", "line", "words"),
    [
        ("utils/errors.py", "import fedlab_runner.core.rng", "fedlab_runner.utils is not allowed to import"),
        ("core/rng.py", "import fedlab_runner.core.algorithm", "fedlab_runner.core"),
        ("newcomers/__init__.py", "", "newcomers"),
    ],
)
def test_a_fault_is_found(path: str, line: str, words: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fedlab_runner", tmp_path / "fedlab_runner", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / "fedlab_runner" / path
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as end:
        end.write(f"\n{line}\n")
    ended = lint(tmp_path)
    assert ended.returncode == 1
    assert words in " ".join((ended.stdout + ended.stderr).split())
