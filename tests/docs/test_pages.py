"""The pages written by hand are true: links, pictures, commands, metric keys, defaults, the files of a run folder."""

import itertools
import json
import re
import shlex
from functools import cache, partial
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from docs.generate import markdown
from fedlab_runner.config import build, run_id
from fedlab_runner.core.metric_names import DATA, MODELS
from fedlab_runner.experiment import run
from tests.helpers import pictures
from tests.helpers.composed import composed
from tests.helpers.paths import ROOT
from tests.helpers.toy import ALGORITHMS, FEW_ROUNDS, SMALLER

DOCS = ROOT / "docs"
RUNNING = (DOCS / "running.md").read_text()
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
BY_HAND = [page for page in PAGES if page.parent.name != "reference" and "extending" not in page.as_posix()]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if target.startswith("http"):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file), target


def test_every_picture_is_on_a_page() -> None:
    shown = {(page.parent / target).resolve() for page in PAGES for target in LINK.findall(page.read_text())}
    assert [path for path in (DOCS / "images").iterdir() if path.resolve() not in shown] == []


@pytest.mark.parametrize("page", BY_HAND, ids=name)
def test_lines_are_not_long(page: Path) -> None:
    """Tables, blocks of code and addresses cannot be wrapped."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    long = [line for line in text.splitlines() if len(line) > markdown.LINE_LENGTH]
    assert [line for line in long if not line.startswith(("|", "![")) and "](" not in line] == []


@pytest.mark.parametrize("page", BY_HAND, ids=name)
def test_an_item_of_a_list_begins_a_line(page: Path) -> None:
    assert re.findall(r"\S - \*\*.*", page.read_text()) == []


def commands(page: Path) -> list[list[str]]:
    """The words of each `fedlab` command in the blocks of code, but of those with an example of a new part."""
    text = page.read_text()
    new = re.findall(r"<!-- file: conf/(\w+)/(\w+)\.yaml -->", text)
    lines = [
        line
        for block in re.findall(r"```bash\n(.*?)```", text, re.S)
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("fedlab ") and not any(f"{group}={choice}" in line for group, choice in new)
    ]
    return [shlex.split(line, comments=True) for line in lines]


COMMANDS = [words for page in BY_HAND for words in commands(page)]


def jobs(words: list[str]) -> list[list[str]]:
    """The overrides of each job, without those of Hydra itself and of its plugins, which may not be installed."""
    wanted = [word for word in words if "=" in word and not word.startswith(("hydra", "device=cuda", "install="))]
    wanted += [word for word in words if word.startswith("~")]
    if "-m" not in words:
        return [wanted]
    values = [
        (key, value if value[:1] == "[" else value.split(",")) for key, _, value in (w.partition("=") for w in wanted)
    ]
    options = [[f"{key}={each}" for each in ([value] if isinstance(value, str) else value)] for key, value in values]
    return [list(job) for job in itertools.product(*options)]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_composes(words: list[str]) -> None:
    for overrides in jobs(words):
        build.build(composed(*(each for each in overrides if not each.startswith("hparams_search=")), small=False))


def test_the_8_jobs_are_8() -> None:
    for sweep in (words for words in COMMANDS if "delay.std=5,20" in words):
        assert len(jobs(sweep)) == 8


VALIDATED = ("client_split.validation=0.2", "evaluation.matrix=[client/validation]")
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
        quick = {
            name: [f"algorithm.{key}={value}" for key, value in (FEW_ROUNDS | SMALLER).get(name, {}).items()]
            for name in ALGORITHMS
        }
        runs = [(f"algorithm={name}", *mine, *leashed, *quick[name]) for name in ALGORITHMS]
        runs.append(("algorithm=feddle", "model=mlp", *others))
        runs.append((*runs[-1], "server_data@probe_data=in_domain"))
        runs.append(("algorithm=fedcda", "algorithm.warmup=1", "nonfinite=drop", "local.update_norm=1"))
        runs.append(("algorithm=fedavg", "analysis=update_cosines", "analysis.every=1"))
        runs.append(("algorithm=fedavg", "aggregator=krum"))
        layerwise = ("algorithm.layerwise=true", "algorithm.late_policy=discard")
        runs.append(("algorithm=fedma", "model=mlp", *layerwise))
        runs.append(("algorithm=dfml", "algorithm.regular=true", "model=mix", "server_data=none", *VALIDATED))
        blocks = ("partition=random_blocks", "partition.num_blocks=4", "partition.blocks_per_client=2")
        runs.append(("algorithm=hyfem", "model=blocks_mlp", *blocks, "server_data=none"))
        for overrides in runs:
            folder = tmp_path_factory.mktemp("run")
            run.run_in(folder, composed("rounds=3", "executor=loop", *overrides, "evaluation.per_class=true"))
            for file in ("metrics.jsonl", "timings.jsonl"):
                for line in (folder / file).read_text().splitlines():
                    keys |= json.loads(line).keys()
    return keys


@pytest.mark.slow  # a run of each method
def test_every_metric_is_documented_and_every_documented_one_is_logged(logged: set[str]) -> None:
    documented = [key for row in markdown.rows((DOCS / "metrics.md").read_text()) for key in code(row[0])]
    cells = f"({'|'.join(MODELS)})/({'|'.join(DATA)})"
    patterns = {key: re.sub(r"<\w+>", r"\\d+", key.replace("<cell>", cells)) for key in documented}
    assert {key for key in logged if not any(re.fullmatch(p, key) for p in patterns.values())} == set()
    assert {key for key, p in patterns.items() if not any(re.fullmatch(p, name) for name in logged)} == set()


def test_the_defaults_in_the_table_of_choices_are_those_of_the_configs() -> None:
    spans = [span for row in markdown.rows((DOCS / "choices.md").read_text()) for span in code(row[-1])]
    assert len(spans) > 10
    composed_once = cache(partial(composed, small=False))
    for span in spans:
        overrides = [each.partition("=") for each in span.split()]
        cfg = composed_once(*(f"{key}={value}" for key, _, value in overrides if (ROOT / "conf" / key).is_dir()))
        for key, _, value in overrides:
            if "." in key or not (ROOT / "conf" / key).is_dir():
                assert OmegaConf.select(cfg, key, throw_on_missing=True) == yaml.safe_load(value), span


def test_the_keys_that_do_not_decide_the_numbers_are_those_on_the_page() -> None:
    (text,) = re.findall(r"so one config has one folder\.(.*?)are not part of the hash", RUNNING, re.S)
    written = {*code(text), *(f"{node}.{key}" for node in run_id.SERVER_DATA for key in ("root", "download", "cache"))}
    assert written - {"server_data"} == {key for key in run_id.VOLATILE if ".dataset." not in key}


@pytest.mark.pictures
def test_the_files_of_a_run_folder_are_those_on_the_page(tmp_path: Path) -> None:
    run.run_in(tmp_path, composed("rounds=1", "delay=none"))
    table = RUNNING.split("\n## The run folder\n")[1].split("\n## ")[0]
    listed = {name.rstrip("/") for row in markdown.rows(table) for cell in row for name in code(cell)}
    pictures = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {name.replace(".svg", ".png") for name in pictures} <= listed
    assert {path.name for path in tmp_path.iterdir()} <= listed
