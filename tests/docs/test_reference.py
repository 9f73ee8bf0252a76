"""The pages in docs/ are those of the code, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

from docs.generate import readme
from docs.generate import reference as docs
from tests.helpers.paths import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))


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
