"""The page on own data: each program writes its files, and the command below it trains on them."""

import contextlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.extending import Fedlab, fedlab
from tests.helpers.paths import ROOT

__all__ = ["fedlab"]  # a fixture
PAGE = (ROOT / "docs" / "own-data.md").read_text()
SHORT = ("algorithm=fedavg", "delay=none", "rounds=4", "logger=none", "device=cpu", "local.lr=0.1", "threads=1")
SECTIONS = {"Images": 0.9, "A table": 0.8, "Arrays": 0.7, "The Hugging Face Hub": 0.9}  # least accuracies


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def program(title: str) -> tuple[str, str]:
    ((name, text),) = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", section(title), re.S)
    return name, text


def command(title: str) -> list[str]:
    return shlex.split(re.findall(r"^fedlab ((?:.*\\\n)*.*)$", section(title), re.M)[0].replace("\\\n", " "))


def summary(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "summary.json").read_text())
    return found


@pytest.mark.parametrize("title", SECTIONS)
def test_the_example_runs_and_learns(title: str, fedlab: Fedlab) -> None:
    if title == "The Hugging Face Hub" and not importlib.util.find_spec("datasets"):
        pytest.skip("the extra huggingface is not installed")
    execute(title)
    caches = ["dataset.cache=cache"] if title == "Images" else []
    assert fedlab(*command(title), *SHORT, *caches, "hydra.run.dir=outputs/mine") == (0, "")
    assert summary("outputs/mine")["objective"] > SECTIONS[title]
    shown = execute("The trained model").splitlines()[-1]  # behind lines of the log
    assert float(shown.split()[0]) == pytest.approx(summary("outputs/mine")["last"], abs=1e-3)


def execute(title: str) -> str:
    """What a section's program prints, run in the present folder and in this process."""
    name, text = program(title)
    Path(name).write_text(text)
    # a library's progress bars belong to the program, not to the command that the test runs next
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
        runpy.run_path(name, run_name="__main__")
    return said.getvalue()


def test_the_table_lists_the_choices_and_what_they_need(fedlab: Fedlab) -> None:
    rows = re.findall(r"^\| .* \| `dataset=(\w+)` \| (.*) \|$", PAGE, re.M)
    assert [name for name, _ in rows] == ["image_folder", "csv", "npz", "huggingface"]
    for name, needed in rows:
        keys = re.findall(r"`(dataset\.\w+)`", needed)
        code, said = fedlab(f"dataset={name}", "logger=none")
        assert code == 2 and set(re.findall(r"(dataset\.\w+) is missing", said)) == {*keys}, said


def test_the_programs_are_formatted_as_the_code_is() -> None:
    for title in (*SECTIONS, "The trained model"):
        name, text = program(title)
        for how in (["check"], ["format", "--check"]):
            arguments = [*how, "--config", str(ROOT / "pyproject.toml"), "--stdin-filename", name, "-"]
            ended = subprocess.run(
                [sys.executable, "-m", "ruff", *arguments], input=text, text=True, capture_output=True
            )
            assert ended.returncode == 0, ended.stdout + ended.stderr
