"""The pages in docs/ are those of the code, their links lead somewhere, and their example of a data set runs."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import readme
from docs.generate import reference as docs
from tests.helpers.paths import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", EXTENDING, re.S))


@pytest.mark.parametrize("name", docs.PAGES)
def test_a_generated_page_is_that_of_the_code(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == docs.PAGES[name](), "run: make docs"


@pytest.mark.parametrize(("group", "page"), [("algorithm", "algorithms.md"), ("dataset", "datasets.md")])
def test_every_choice_has_its_chapter_with_all_keys(group: str, page: str) -> None:
    chapters = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (ROOT / "docs" / page).read_text(), re.S | re.M))
    assert sorted(chapters) == sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))
    for path in readme.files(group):
        assert all(f"| {key} |" in chapters[path.stem] for key, *_ in readme.keys(path))


def test_every_data_set_has_a_licence_and_every_choice_its_algorithm() -> None:
    sets, algorithms = docs.datasets(), docs.algorithms()
    assert sets.count("\nLicence: ") == sets.count("\n## ")
    fedbuff = algorithms.split("\n## fedbuff\n")[1].split("\n## ")[0]
    assert "Where the paper is silent:" in fedbuff and "`algorithm=fedbuff algorithm.staleness_exp=0.0`" in fedbuff
    assert "What does SCAFFOLD start with?" not in fedbuff


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if target.startswith("http"):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def test_the_example_of_a_data_set_is_formatted_as_the_code_is() -> None:
    (source,) = [text for path, text in FILES.items() if path.endswith(".py")]
    for command in (["check"], ["format", "--check"]):
        arguments = [*command, "--config", str(ROOT / "pyproject.toml"), "--stdin-filename", "spirals.py", "-"]
        ended = subprocess.run([sys.executable, "-m", "ruff", *arguments], input=source, text=True, capture_output=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow  # commands of the user's, each from its start
def test_the_example_of_a_data_set_learns(tmp_path: Path) -> None:
    """In a copy of the repository that differs by the two files of the page."""
    for folder in ("fedlab_runner", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in FILES.items():
        assert not (tmp_path / path).exists()
        (tmp_path / path).write_text(text)
    (command,) = re.findall(r"^fedlab (.*)$", EXTENDING, re.M)

    def fedlab(*more: str) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "fedlab_runner", *shlex.split(command), "logger=none", "rounds=30", *more]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(start, cwd=tmp_path, env=environment, capture_output=True, text=True)

    ran = fedlab("local.lr=0.5", "local.epochs=5", "delay=none")
    assert ran.returncode == 0, ran.stderr
    (summary,) = tmp_path.glob("outputs/*/summary.json")
    assert json.loads(summary.read_text())["objective"] > 0.6  # half of the points by chance
    assert fedlab("dataset.turns=-1").stderr == "error: dataset.turns must be > 0, got -1.0\n"
