"""The pages in docs/reference are those of the code."""

import re
import shutil
from pathlib import Path

import pytest

from docs.generate import markdown, reference
from fedlab_runner.config import build, listing
from tests.helpers.composed import composed
from tests.helpers.paths import ROOT

FOLDER = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """As the code makes them."""
    return reference.pages()


def chapters(text: str) -> dict[str, str]:
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.S | re.M))


def test_the_generated_pages_are_those_of_the_code(pages: dict[str, str]) -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert written == pages, "run: make docs"


def test_every_group_with_components_has_its_page() -> None:
    groups = {path.parent.name for path in (ROOT / "conf").glob("*/*.yaml") if "_target_" in path.read_text()}
    assert groups - {"hparams_search"} == {*reference.GROUPS, *reference.SETTINGS}


@pytest.mark.parametrize("group", reference.GROUPS)
def test_every_choice_has_its_chapter_with_all_keys(group: str) -> None:
    found = chapters((FOLDER / f"{group}.md").read_text())
    found.pop("More", None)
    assert sorted(found) == sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))
    for path in reference.files(group):
        assert all(f"| {key} |" in found[path.stem] for key, *_ in reference.keys(path))


@pytest.mark.parametrize("group", reference.GROUPS)
def test_what_a_key_means_is_in_its_line(group: str) -> None:
    """The pages leave out a comment of the lines after it."""
    texts = [path.read_text() for path in (ROOT / "conf" / group).rglob("*.yaml")]
    assert [found for text in texts for found in re.findall(r"^\w+:.*#.*\n +#.*", text, re.M)] == []


def advised() -> list[list[str]]:
    """Of each choice whose comment names values of keys: the choice and these."""
    found = []
    for path in (path for group in reference.GROUPS for path in reference.files(group)):
        comment = re.match(r"(#.*\n)*", path.read_text())
        words = re.findall(r"(?<=[ :])[\w.@]+=(?:[\w/.]+|\[.*?\])(?=[ ,.;)]|$)", comment[0] if comment else "", re.M)
        if words and "???" not in path.read_text():
            found.append([f"{path.parent.name}={path.stem}", *(word.rstrip(".") for word in words)])
    return found


@pytest.mark.parametrize("overrides", advised(), ids=" ".join)
def test_what_the_comment_of_a_choice_advises_can_be_built(overrides: list[str]) -> None:
    build.build(composed(*overrides, small=False))


def test_every_experiment_is_listed() -> None:
    listed = {row[0].strip("`") for row in markdown.rows((FOLDER / "experiment.md").read_text())}
    folder = ROOT / "conf" / "experiment"
    assert listed == {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")}


def test_every_data_set_has_a_licence_and_every_choice_its_algorithm(pages: dict[str, str]) -> None:
    sets, algorithms = pages["dataset.md"], chapters(pages["algorithm.md"])
    assert sets.count("\nLicence: ") == sets.count("\n## ")
    assert "/&lt;class>/" in sets and "/<class>/" not in sets
    assert not [page for page, text in pages.items() if re.search(r"\]\([^)]*[,.;]\)", text)]
    fedbuff = algorithms["fedbuff"]
    assert "Where the paper is silent:" in fedbuff and "`algorithm=fedbuff algorithm.staleness_exp=0.0`" in fedbuff
    assert "What does SCAFFOLD start with?" not in fedbuff
    loss = "What is a client's loss in q-FedAvg?"
    assert loss in algorithms["qfedavg"] and loss not in algorithms["fedavg"]


def test_a_page_follows_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "conf" / "delay" / "another.yaml").write_text(
        "# Two rounds.\n_target_: fedlab_runner.delays.constant.ConstantDelay\n"
        "draw: null\nrounds: [1, a]  # large <x>\n"
    )
    for module in (reference, listing):
        monkeypatch.setattr(module, "conf_dir", lambda: tmp_path / "conf")
    chapter = chapters(reference.group_page("delay"))["another"]
    assert "Two rounds.\n\nIt is [`constant`](#constant) with other defaults." in chapter
    assert "| `delay.draw` | `null` |  |\n| `delay.rounds` | `[1,a]` | large &lt;x> |" in chapter


def test_settings_have_the_default_and_the_comment_of_their_file() -> None:
    settings = {
        key.strip("`"): (default.strip("`"), meaning) for key, default, meaning in markdown.rows(reference.settings())
    }
    assert settings["rounds"] == ("100", "asking for more continues the same run")
    assert settings["evaluation.per_class"] == ("false", "adds test/accuracy_class/&lt;class>")


def test_lines_break_where_markdown_reads_nothing_into_it() -> None:
    words = "word " * 24
    assert markdown.wrapped(f"{words}- 1 `a b`").splitlines() == [("word " * 20).strip(), ("word " * 4) + "- 1 `a b`"]
    assert markdown.wrapped(f"| {words} |") == f"| {words} |"
    assert all(line.startswith(("- ", "  ")) for line in markdown.wrapped(f"- {words}").splitlines())
