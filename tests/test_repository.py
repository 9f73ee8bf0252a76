"""The repository's own rules: the targets of make, the hooks of a commit, the citation, names and comments."""

import ast
import re
import shlex
from collections import defaultdict
from pathlib import Path

import yaml

from fedlab_runner import __version__
from tests.helpers.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
MODULES = sorted((ROOT / "fedlab_runner").rglob("*.py"))


def recipe(target: str) -> tuple[list[str], list[str]]:
    """The prerequisites of a target, and its commands."""
    found = re.search(rf"^{target}:([^#\n]*)##[^\n]*\n((?:\t.*\n)*)", MAKEFILE, re.M)
    assert found
    return found[1].split(), found[2].splitlines()


def test_check_is_what_the_ci_runs() -> None:
    checks = re.search(r"^for check in (.*); do$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert checks and recipe("check") == (checks[1].split(), [])


def test_lint_looks_at_style_format_and_layers() -> None:
    _, commands = recipe("lint")
    assert [shlex.split(line)[0] for line in commands] == ["@$(BIN)/ruff", "@$(BIN)/ruff", "@$(BIN)/lint-imports"]


def test_a_commit_is_checked_by_the_ruff_of_lint() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [shlex.split(hook["entry"])[:2] for hook in repository["hooks"]]
    assert entries == [[".venv/bin/ruff", "check"], [".venv/bin/ruff", "format"]]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format asks for
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert (citation["title"], citation["version"], citation["license"]) == ("fedlab_runner", __version__, "Apache-2.0")
    assert all(set(author) == {"name"} for author in citation["authors"]), "entities, not people"


def test_contributing_is_one_page_and_true() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.splitlines()) <= 80
    targets = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.M))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    folders = {path.name for path in Path(ROOT / "fedlab_runner").iterdir() if (path / "__init__.py").is_file()}
    shown = text.split("```text\n")[1].split("```")[0]
    listed = set(re.findall(r"\w+", " ".join(re.split(r" {2,}", line)[0] for line in shown.splitlines())))
    assert listed <= folders | {"train", "api"}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / target).is_file()


def test_a_published_table_of_rounds_names_the_metric_of_each_column() -> None:
    """Else a report holds accuracies against numbers of rounds."""
    tables = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf" / "paper").rglob("*.yaml"))]
    of_rounds = [table for table in tables if table["unit"].startswith("rounds ")]
    assert len(of_rounds) >= 2 and all("metric" in column for table in of_rounds for column in table["columns"])


def test_no_two_rows_of_a_published_table_are_of_the_same_runs() -> None:
    """A row is told by its choice, and by its target if it has one."""
    for path in sorted((ROOT / "conf" / "paper").rglob("*.yaml")):
        told = [(row["choice"], row.get("target")) for row in yaml.safe_load(path.read_text())["rows"]]
        assert not [each for i, each in enumerate(told) if each in told[:i]], path


def test_a_class_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_every_module_constant_says_what_it_is() -> None:
    """In its line, or above it or the lines of constants that it continues; a type variable's bound says enough."""
    assert not [fault for path in MODULES for fault in silent_constants(path)]


def silent_constants(path: Path) -> list[str]:
    """The constants of a module without a comment."""
    source = path.read_text()
    lines, found, told = source.splitlines(), [], 0
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        constant = isinstance(target, ast.Name) and target.id.lstrip("_").isupper()
        own = any(re.search(r"(^|  )# ", lines[i - 1]) for i in (node.lineno, node.end_lineno or 0))
        above = node.lineno > 1 and lines[node.lineno - 2].startswith("#")
        if constant and (own or above or told == node.lineno - 1):
            told = node.end_lineno or 0 if above or told == node.lineno - 1 else 0
        elif constant and not lines[node.lineno - 1].partition("= ")[2].startswith("TypeVar("):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {lines[node.lineno - 1]}")
    return found
