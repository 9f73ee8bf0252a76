"""The manual is true: its tables, links, tree, commands, metric keys, defaults and the example of a new algorithm."""

import itertools
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
import yaml
from omegaconf import OmegaConf

from docs.generate import readme
from fedlab_runner.config import build as config
from fedlab_runner.experiment.run import run_in
from tests.helpers import pictures
from tests.helpers.composed import composed
from tests.helpers.paths import ROOT
from tests.helpers.toy import ALGORITHMS

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = "fedavgm"  # the algorithm that the page adds


def section(title: str) -> str:
    """The text under a heading of the second level."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# The generated tables.


def test_the_tables_are_those_of_the_code() -> None:
    assert readme.regenerate(TEXT) == TEXT, "run: make readme"


def test_a_table_follows_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "conf" / "algorithm" / "another.yaml").write_text(
        "_target_: fedlab_runner.algorithms.fedprox.FedProx\nmu: 2.5  # large\nlate_policy: null\nweighting: [1, a]\n"
    )
    monkeypatch.setattr(readme, "conf_dir", lambda: tmp_path / "conf")
    assert readme.algorithms().splitlines()[2] == (
        "| `another` | `FedProx` | [Li et al., MLSys 2020, Algorithm 2](https://arxiv.org/abs/1812.06127) | FedAvg "
        "whose clients also minimise mu/2 \\|\\|w - x\\|\\|^2, the squared distance to the model they received "
        "(trainable parameters only). | `mu=2.5`, `late_policy=null`, `weighting=[1,a]` |"
    )


def test_settings_have_the_default_and_the_comment_of_their_file() -> None:
    settings = {code(key)[0]: (code(default)[0], meaning) for key, default, meaning in rows(readme.settings())}
    assert settings["rounds"] == ("100", "asking for more continues the same run")
    assert settings["local.clip_norm"] == ("null", "largest norm of a minibatch gradient")
    assert settings["evaluation.per_class"] == ("false", "adds test/accuracy_class/&lt;class>")


def test_a_page_that_lacks_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the tables between markers must be algorithms, .*, got datasets"):
        readme.regenerate(TEXT.replace("<!-- generated: algorithms -->", ""))


# What is written by hand.


def test_what_the_page_links_to_is_there() -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", TEXT)
    headings = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in headings
        elif not target.startswith("http"):
            assert (ROOT / target).is_file(), target
    pictures = {target for target in targets if target.endswith(".png")}
    for page in (ROOT / "docs").glob("*.md"):
        pictures |= {f"docs/{name}" for name in re.findall(r"\]\(([^)\s/]+\.png)\)", page.read_text())}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.png")} == pictures


def test_the_tree_is_true() -> None:
    paths = [line.split()[0] for line in section("The tree").splitlines() if re.match(r"[\w/.]+ {2,}", line)]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists() or (ROOT / path).is_dir() != path.endswith("/")] == []


COMMANDS = [
    words
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S)
    for line in block.splitlines()
    if (words := shlex.split(line, comments=True)) and words[0] == "fedlab" and EXAMPLE not in line
]


def jobs(words: list[str]) -> list[list[str]]:
    """The overrides of each job, without those of Hydra itself and of its plugins, which may not be installed."""
    wanted = [word for word in words if "=" in word and not word.startswith(("hydra", "device=cuda"))]
    if "-m" not in words:
        return [wanted]
    options = [[f"{key}={each}" for each in value.split(",")] for key, _, value in (w.partition("=") for w in wanted)]
    return [list(job) for job in itertools.product(*options)]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_composes(words: list[str]) -> None:
    for overrides in jobs(words):
        config.build(composed(*(each for each in overrides if not each.startswith("hparams_search=")), small=False))


def test_the_8_jobs_are_8() -> None:
    (sweep,) = [words for words in COMMANDS if "delay.std=5,20" in words]
    assert len(jobs(sweep)) == 8


@pytest.mark.parametrize(
    "path", [path for path in (ROOT / "conf").glob("*/*.yaml") if "_target_" in path.read_text()], ids=str
)
def test_every_component_can_be_found_on_the_page(path: Path) -> None:
    group, words = path.parent.name, section("What can be chosen")
    assert f"`{path.stem}`" in words or f"`{group}={path.stem}`" in words or f"`{group}." in words


SYNTHETIC = (
    "dataset@server_data.dataset=synthetic",
    "server_data.dataset.num_train=60",
    "server_data.dataset.num_test=20",
)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every key that some run writes."""
    keys: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        pictures.leave_out(patch.setattr)
        mine, others = ("server_data=in_domain", "server_data.size=50"), ("server_data=torchvision", *SYNTHETIC)
        leashed = ("model=mlp", "server_data@auxiliary_data=in_domain", "auxiliary_data.size=50")
        runs = [(f"algorithm={name}", *mine, *leashed) for name in ALGORITHMS]
        runs.append(("algorithm=feddle", "model=mlp", *others))
        runs.append((*runs[-1], "server_data@probe_data=in_domain"))
        runs.append(("algorithm=fedcda", "algorithm.warmup=1", "nonfinite=drop", "local.update_norm=1"))
        runs.append(("algorithm=fedavg", "analysis=update_cosines", "analysis.every=1"))
        runs.append(("algorithm=dfml", "algorithm.regular=true", "model=mix", "server_data=none", "validation=0.2"))
        blocks = ("partition=random_blocks", "partition.num_blocks=4", "partition.blocks_per_client=2")
        runs.append(("algorithm=hyfem", "model=blocks_mlp", *blocks, "server_data=none"))
        for overrides in runs:
            folder = tmp_path_factory.mktemp("run")
            evaluated = ("evaluation.per_class=true", "evaluation.clients=true", "evaluation.train=true")
            run_in(folder, composed("rounds=3", *overrides, *evaluated))
            for file in ("metrics.jsonl", "timings.jsonl"):
                for line in (folder / file).read_text().splitlines():
                    keys |= json.loads(line).keys()
    return keys


def test_every_metric_is_documented_and_every_documented_one_is_logged(logged: set[str]) -> None:
    documented = [key for row in rows(section("Metrics")) for key in code(row[0])]
    patterns = {key: re.sub(r"<\w+>", r"\\d+", key) for key in documented}
    assert {key for key in logged if not any(re.fullmatch(p, key) for p in patterns.values())} == set()
    assert {key for key, p in patterns.items() if not any(re.fullmatch(p, name) for name in logged)} == set()


def test_the_defaults_in_the_table_of_choices_are_those_of_the_configs() -> None:
    spans = [span for row in rows(section("Choices that papers leave open")) for span in code(row[-1])]
    assert len(spans) > 10
    for span in spans:
        overrides = [each.partition("=") for each in span.split()]
        choices = [f"{key}={value}" for key, _, value in overrides if (ROOT / "conf" / key).is_dir()]
        cfg = composed(*choices, small=False)
        for key, _, value in overrides:
            if "." in key or not (ROOT / "conf" / key).is_dir():
                assert OmegaConf.select(cfg, key, throw_on_missing=True) == yaml.safe_load(value), span


@pytest.mark.pictures
def test_the_files_of_a_run_folder_are_those_on_the_page(tmp_path: Path) -> None:
    run_in(tmp_path, composed("rounds=1", "delay=none"))
    table = section("Everyday use").split("### The run folder")[1].split("###")[0]
    listed = {name.rstrip("/") for row in rows(table) for cell in row for name in code(cell)}
    assert {path.name for path in (*tmp_path.iterdir(), *(tmp_path / "plots").iterdir())} <= listed


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

    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/algorithms/test_contract.py", "-k", EXAMPLE)
    assert tests.returncode == 0, tests.stdout
    assert int(re.findall(r"(\d+) passed", tests.stdout)[0]) >= 10
    (command,) = re.findall(rf"^fedlab (.*{EXAMPLE}.*)$", TEXT, re.M)
    ran = python("-m", "fedlab_runner", *shlex.split(command), "rounds=2", "model=logistic", "logger=none")
    assert ran.returncode == 0, ran.stderr
    (summary,) = tmp_path.glob(f"outputs/{EXAMPLE}-*/summary.json")
    values: dict[str, Any] = json.loads(summary.read_text())
    assert values["rounds"] == 2 and 0 < values["objective"] <= 1
