"""README.md is short and true: its links, methods, tree, commands and the example of a new algorithm."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = "fedavgm"  # the algorithm that the page adds
MAX_LINES = 250


def section(title: str) -> str:
    """The text under a heading of the second level."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_page_is_short() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES


def test_every_algorithm_is_in_the_table_of_methods() -> None:
    cells = re.findall(r"^\|[^|]*\| (`[^|]*`) \|", section("Methods"), re.M)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml"))
    assert f"one of {len(listed)} algorithms" in " ".join(TEXT.split())


def test_the_tree_is_true() -> None:
    paths = [line.split()[0] for line in section("The tree").splitlines() if re.match(r"[\w/.]+ {2,}", line)]
    assert len(paths) >= 8
    assert [path for path in paths if not (ROOT / path).exists() or (ROOT / path).is_dir() != path.endswith("/")] == []


# The algorithm that the page adds.


def files() -> dict[str, str]:
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", TEXT, re.S))


def test_the_example_of_an_algorithm_is_formatted_as_the_code_is() -> None:
    source = files()[f"fedlab_runner/algorithms/{EXAMPLE}.py"]
    for command in (["check"], ["format", "--check"]):
        arguments = [*command, "--config", str(ROOT / "pyproject.toml"), "--stdin-filename", "fedavgm.py", "-"]
        ended = subprocess.run([sys.executable, "-m", "ruff", *arguments], input=source, text=True, capture_output=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow  # commands of the user's, each from its start
def test_the_example_of_an_algorithm_passes_the_common_tests_and_runs(tmp_path: Path) -> None:
    """In a copy of the repository that differs by the two files of the page."""
    for folder in ("fedlab_runner", "conf", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, text in files().items():
        assert not (tmp_path / path).exists()
        (tmp_path / path).write_text(text)

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    common = ("tests/algorithms/test_contract.py", "tests/algorithms/test_properties.py")
    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *common, "-k", EXAMPLE)
    assert tests.returncode == 0, tests.stdout
    assert int(re.findall(r"(\d+) passed", tests.stdout)[0]) >= 15
    (command,) = re.findall(rf"^fedlab (.*{EXAMPLE}.*)$", TEXT, re.M)
    ran = python("-m", "fedlab_runner", *shlex.split(command), "rounds=2", "model=logistic", "logger=none")
    assert ran.returncode == 0, ran.stderr
    (summary,) = tmp_path.glob(f"outputs/{EXAMPLE}-*/summary.json")
    values: dict[str, Any] = json.loads(summary.read_text())
    assert values["rounds"] == 2 and 0 < values["objective"] <= 1
