"""The documentation site: every page is in its navigation, nothing is fetched, no link leaves it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.generate import site
from tests.helpers.paths import ROOT

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def pages(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages(target) if isinstance(target, list) else [target]


def test_every_page_is_in_the_navigation_once() -> None:
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(pages(site.expanded(CONFIG["nav"], ROOT / "docs"))) == sorted(["index.md", *written])


def test_a_folder_in_the_navigation_stands_for_its_pages(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a.md", "a/c.md", "a/b.md", "d.md"):
        (tmp_path / name).touch()
    nav = ["d.md", {"A": "a/", "More": [{"D": "d.md"}]}]
    assert site.expanded(nav, tmp_path) == ["d.md", {"A": ["a.md", "a/b.md", "a/c.md"], "More": [{"D": "d.md"}]}]


def test_nothing_is_fetched_from_a_network() -> None:
    assert CONFIG["theme"]["font"] is False
    assert "offline" in CONFIG["plugins"]
    assert any("iframe-worker" in script for script in CONFIG["extra"]["polyfills"])  # else the plugin adds its own
    for script in (*CONFIG["extra"]["polyfills"], *CONFIG["extra_css"]):
        assert (ROOT / "docs" / script).is_file()


def test_the_search_finds_a_key_by_its_parts() -> None:
    (search,) = [each["search"] for each in CONFIG["plugins"] if "search" in each]
    words = re.split(search["separator"], '`logger.save_model=true` delay.std=0.5 lists=[a,b] "x/y".')
    assert " ".join(filter(None, words)) == "logger save_model true delay std 0.5 lists a b x y"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/speed.md#b) [c](https://d.org)", "[a](speed.md#b) [c](https://d.org)"),
        ("![a](docs/images/a.svg) [b](#concepts)", "![a](images/a.svg) [b](#concepts)"),
        ("[LICENSE](LICENSE)", "LICENSE"),
    ],
)
def test_the_home_page_is_the_readme_with_links_that_fit(text: str, expected: str) -> None:
    assert site.home(text) == expected


def test_links_to_source_files_become_their_text() -> None:
    text = "[a](../../fedlab_runner/a.py) [b](../speed.md) [c](#c) [d](https://d.org)"
    assert site.within_docs(text, "reference/loss.md") == "`a` [b](../speed.md) [c](#c) [d](https://d.org)"
