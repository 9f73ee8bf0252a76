"""docs/referee.md, made from the tests, docs/results.md and what `make referee` recorded: `make docs` writes it."""

import ast
import importlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from docs.generate import markdown
from docs.generate.reference import target
from fedlab_runner.config.build import conf_dir
from fedlab_runner.methods.registry import method_style

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
PAGE = DOCS / "referee.md"
RECORD = Path(__file__).parent / "referee.json"
COMMON = ("contract", "fields", "golden", "limits", "payloads", "statistics")  # tests of all methods, in their stems
OTHER_TABLES = "Tables that others published"  # a chapter of docs/results.md
_NOTE = "<!-- Made by `make docs` from tests and docs/generate/referee.json. Change those, not this page. -->"
_LEAD = """\
This page says how each method is shown to be right. There are four ways:

- *Reference loop*: a loop in plain PyTorch, written from the paper's equations alone. Every value of the method's \
state is the loop's after every round, to 1e-10 in float64.
- *Tests*: identities with other methods, closed forms, limits.
- *Oracle*: code that others wrote. It gets the same first model, cohorts and minibatches. After every round the \
server's models are compared, and what the clients of the round keep to themselves.
- *Published numbers*: runs beside numbers that a paper prints, on the page of [results](results.md).

An empty cell says that there is none."""
_LOOPS = """\
Each method's file in `tests/reference` is the method written a second time: a plain loop over clients and \
minibatches, from the paper alone, with the paper's equations and lines in their order (for example \
[fedavg.py](../tests/reference/fedavg.py)). It uses PyTorch in float64, imports nothing of the package, and \
shares with the other loops what is in [plain.py](../tests/reference/plain.py). A test hands it everything that \
is drawn at random: who starts in which round, when updates arrive, minibatches, the first model. So data and \
draws are the same on both sides, and the formulas are written twice.

The tests compare **every value of a method's State after every round** and require a difference below 1e-10. A \
State has the models, control variates, buffers, caches, moments and counters.

- Eight clients have 1 to 40 examples. The one with a single example takes part in each case.
- Each case has five rounds or more. Each method has cases with an MLP and with batch norm, whose running \
statistics are compared too.
- Where updates may be late, a case has late ones.
- Keys that choose another rule of the paper have cases of their own.
- `executor=loop` makes all rounds of each case, and `vectorized` the first two of each method's first case. The slow \
tests make these two rounds of every case with `vectorized`, `processes` and compiled steps, and of each method's \
first case with `ray`.
- The gradient that the loops use is compared with one written by hand in NumPy, to 1e-14.

Where a paper is silent or the package departs from it, the first lines of the file say so; [open \
choices](choices.md) names the key. The comparison can fail: it sees a server learning rate that is wrong by a \
millionth."""
_COMMANDS = """\
```bash
make test ARGS="tests/reference -n 0"
make test ARGS="tests/reference -n 0 -k 'fedcda and not executor'"
```"""
_ORACLES = """\
`make referee` makes an environment for each library, compares it and records what it finds. The tables have the \
largest difference of a value, over {rounds} rounds of {cohort} of {clients} clients with 1 to {most} examples (2 to \
{most} with batch norm), or the first round in which the two part. Values are those of the server's model; of Ditto, \
APFL and FedALA also those of the clients' personal models, and with a `home` what stays there. Oracles that compute \
in float64 must agree to {float64:.0e}. Where some value on the way is float32, they must agree to {float32:.0e}.

dp-accounting is no oracle, as this package has no differential privacy. Below each table are the library's methods \
that this package does not have. In rows of byzfl two of eight updates are replaced by those of one of its attacks.

Partitions are compared by two-sample tests (Kolmogorov and Smirnov) of {statistics} statistics of the counts of \
classes. p is the smallest of their p-values, times their number; below {p:.0e} the two part."""
_ORACLE_NAMES = {"flower": "Flower", "pfl": "pfl-research", "fluke": "fluke", "fedlab": "FedLab", "byzfl": "byzfl"}


def page() -> str:
    """The whole page."""
    parts = [
        "# The referee",
        _NOTE,
        _LEAD,
        "## Methods",
        methods_table(),
        "## Reference loops",
        _LOOPS,
        _COMMANDS,
        "## Oracles",
        oracles_lead(),
        *oracle_tables(),
        "## Faults of the others",
        "Each script runs with the version that its chapter names; `make referee` runs it and records what it prints.",
        *findings(),
    ]
    return "\n\n".join(part if part.startswith(("```", "<!--")) else markdown.wrapped(part) for part in parts) + "\n"


def main() -> int:
    """Write docs/referee.md again."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def methods() -> list[str]:
    """All methods, by their names on the command line."""
    return sorted(path.stem for path in (conf_dir() / "algorithm").glob("*.yaml"))


def record() -> dict[str, Any]:
    """What `make referee` recorded, by oracle."""
    oracles: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))["oracles"]
    return oracles


def methods_table() -> str:
    loops, tests, published = reference_loops(), own_tests(), results()
    header = ["method", "reference loop", "tests", "oracles", "published numbers"]
    cells = (loops, tests, oracle_cells(), published)
    return markdown.table(header, [[f"`{name}`", *(each.get(name, "") for each in cells)] for name in methods()])


def reference_loops() -> dict[str, str]:
    """Of each method that has one: the file, and the equations that it follows."""
    found: dict[str, list[str]] = {}
    where: dict[str, Path] = {}
    for case in importlib.import_module("tests.reference.harness").all_cases():
        loop = getattr(case.reference, "func", case.reference)  # of a partial
        where.setdefault(case.method, Path(*loop.__module__.split(".")).with_suffix(".py"))
        equations = found.setdefault(case.method, [])
        equations += [each for each in case.equations.split("; ") if each and each not in equations]
    return {name: f"{_file(where[name])}: {'; '.join(equations)}" for name, equations in found.items()}


def own_tests() -> dict[str, str]:
    """Of each method: the file with its tests, or else the files in which a test names it."""
    texts = {}
    for path in sorted((ROOT / "tests" / "algorithms").glob("**/test_*.py")):
        if path.stem.removeprefix("test_") not in COMMON:
            texts[path.relative_to(ROOT)] = path.read_text(encoding="utf-8")
    found = {}
    for name in methods():
        own = [path for path in texts if path.stem == f"test_{name}"]
        named = re.compile(rf'"{name}"|def test_(\w+_)?{name}_')
        found[name] = own or [path for path, text in texts.items() if named.search(text)]
    return {name: ", ".join(map(_file, files)) for name, files in found.items()}


def oracle_cells() -> dict[str, str]:
    """Of each method that some oracle has: the oracles, with their largest difference or where they part."""
    found: dict[str, list[str]] = {}
    for oracle, measured in record().items():
        by_method: dict[str, list[dict[str, Any]]] = {}
        for row in measured["rows"]:
            if "method" in row:
                by_method.setdefault(row["method"], []).append(row)
        for method, rows in by_method.items():
            agree = [row["difference"] for row in rows if "cause" not in row]
            parted = len(rows) - len(agree)
            words = [_number(max(agree, default=0.0))] * bool(agree) + [
                f"parts in {parted} of {len(rows)} settings"
            ] * bool(parted)
            found.setdefault(method, []).append(f"{_ORACLE_NAMES[oracle]}: {', '.join(words)}")
    return {name: "; ".join(cells) for name, cells in found.items()}


def results() -> dict[str, str]:
    """Of each method with a number beside a published one: the chapters of docs/results.md."""
    found: dict[str, list[str]] = {}
    for title, text in _chapters((DOCS / "results.md").read_text(encoding="utf-8")):
        link = f"[{title.partition(':')[0]}](results.md#{_anchor(title)})"
        for name in (each for each in methods() if _is_named(each, text)):
            found.setdefault(name, []).append(link)
    return {name: ", ".join(chapters) for name, chapters in found.items()}


def _chapters(page: str) -> list[tuple[str, str]]:
    """Titles and texts of the chapters with tables beside a paper's, and of the parts of the one on other tables."""
    found = []
    for chapter in re.split(r"^## ", page, flags=re.M)[1:]:
        title, text = chapter.split("\n", 1)
        if title == OTHER_TABLES:
            parts = re.split(r"^### ", text, flags=re.M)[1:]
            found += [(part.split("\n", 1)[0], part.split("\n", 1)[1]) for part in parts]
        elif re.search(r"^\|.*\bpaper\b", text, re.M):
            found.append((title, text))
    return found


@cache
def _of_preset(name: str) -> set[str]:
    """The methods that an experiment sweeps over, or the one that it has."""
    node = OmegaConf.load(conf_dir() / "experiment" / f"{name}.yaml")
    swept = OmegaConf.select(node, "hydra.sweeper.params.algorithm")
    if swept:
        return set(str(swept).split(","))
    entries = [entry for entry in node.defaults if isinstance(entry, DictConfig)]
    chosen = {str(entry[key]) for entry in entries for key in entry if key == "override /algorithm"}
    bases = [entry.removeprefix("/experiment/") for entry in node.defaults if str(entry).startswith("/experiment/")]
    return chosen or {method for base in bases for method in _of_preset(base)}


def _is_named(method: str, text: str) -> bool:
    """Whether a command, its preset, or one of the first cells of a row has a method."""
    cls, shown = target(conf_dir() / "algorithm" / f"{method}.yaml").__name__, method_style(method).name
    first = [row[0].replace("+", "") for row in markdown.rows(text)]
    in_rows = any(re.match(rf"{cls}\b", cell, re.IGNORECASE) for cell in first)
    named = {part.strip() for row in markdown.rows(text) for cell in row[1:3] for part in cell.split(";")}
    in_rows |= shown.replace("Dec.", "decentralised") in named
    presets = re.findall(r"\bexperiment=(published/\w+)", text)
    return (
        in_rows
        or bool(re.search(rf"\balgorithm={method}\b", text))
        or any(method in _of_preset(each) for each in presets)
    )


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def oracles_lead() -> str:
    setting, partitions = (importlib.import_module(f"tests.referee.{name}") for name in ("comparison", "partitioners"))
    sizes = setting.RAGGED
    return _ORACLES.format(
        rounds=setting.ROUNDS,
        cohort=setting.COHORT,
        clients=len(sizes),
        most=max(sizes),
        float64=setting.FLOAT64,
        float32=setting.FLOAT32,
        statistics=len(partitions.STATISTICS),
        p=partitions.LEAST_P,
    )


def oracle_tables() -> list[str]:
    """A chapter for each oracle: its version, and a row for each comparison."""
    parts = []
    for oracle, measured in record().items():
        made = f"Python {measured['python']}, torch {measured['torch']}, seed {measured['seed']}"
        first = next(iter(measured["rows"]))
        what = next(key for key in ("method", "partition", "metric") if key in first)
        rows = [[f"`{row[what]}`", row["setting"], *_outcome(row)] for row in measured["rows"]]
        parts += [
            f"### {measured['version']}",
            f"{made}, commit {measured['commit'][:7]}.",
            markdown.table([what, "setting", "result", "whose formula is the paper's"], rows),
        ]
        lacking = importlib.import_module("tests.referee.oracle").not_here(oracle)
        parts += [f"Not here: {', '.join(lacking)}."] * bool(lacking)
    return parts


def _outcome(row: dict[str, Any]) -> list[str]:
    if "p" in row:
        draws = " and ".join(map(str, row["draws"]))
        return [f"p = {row['p']:.1g}, {row['statistic']} ({draws} partitions)", row.get("cause", "")]
    if "round" in row:
        steps = row.get("step")
        first = f"from {steps} local step{'s' * (steps > 1)} on" if steps else "not if all take as many local steps"
        more = f" ({first})" if row["round"] == 1 else ""
        return [f"parts in round {row['round']}{more}, by {_number(row['difference'])}", row["cause"]]
    return [_number(row["difference"]), row.get("cause", "")]


def _number(difference: float) -> str:
    return f"{difference:.0e}" if difference else "0"


def findings() -> list[str]:
    """A chapter for each fault of the others: what is wrong, a script that shows it, and what it prints."""
    parts = []
    for measured in record().values():
        for name, printed in measured["findings"].items():
            source = (ROOT / "tests" / "referee" / "findings" / f"{name}.py").read_text(encoding="utf-8")
            docstring = ast.get_docstring(ast.parse(source)) or ""
            title, *about = markdown.paragraphs(docstring)
            code = source.split('"""', 2)[2].strip()
            parts += [f"### {measured['version'].partition('[')[0].partition('=')[0]}: {title.rstrip('.')}"]
            parts += [*about, f"Version: `{measured['version']}`.", f"```python\n{code}\n```"]
            parts += ["```text\n" + "\n".join(printed) + "\n```"]
    return parts


def _file(path: Path) -> str:
    return f"[{path.name}](../{path.as_posix()})"


if __name__ == "__main__":
    raise SystemExit(main())
