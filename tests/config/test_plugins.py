"""Extending from outside: a package that registers itself, folders on the search path, and what is imported when."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from fedlab_runner import compose, train
from fedlab_runner.config import listing, targets
from fedlab_runner.utils import plugin_folders
from tests.helpers.extending import EXAMPLES, INDEX, Fedlab, fedlab, files
from tests.helpers.paths import ROOT

__all__ = ["fedlab"]  # a fixture
TINY = ["num_clients=8", "participation.cohort_size=2", "rounds=2", "logger=none", "device=cpu"]
LATER = """
import os, sys
from fedlab_runner import train

def called(*arguments):
    sys.argv = ["fedlab", *arguments]
    try:
        assert not train.main()
    except SystemExit as end:
        assert not end.code
    assert not {"acme_fl", "torch"} & {name.partition(".")[0] for name in sys.modules}
    print("----")

called("--help")
called("--list", "algorithms")
called("--list", "experiments")
called("--cfg", "job", "experiment=acme/rings", "--package", "dataset")
for line in ("algorithm=fedm", "experiment=acme/"):
    os.environ |= {"COMP_LINE": f"fedlab {line}", "COMP_POINT": str(len(line) + 7)}
    called("--shell-completion", "query=bash")
"""
AGAIN = """
import sys
from fedlab_runner import train

assert not train.main()
assert not {"bimodal", "torch"} & set(sys.modules)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of the page, as pip leaves it: the examples of an algorithm and a data set, and an experiment."""
    site, shown = tmp_path / "site", files(INDEX)
    project = tomllib.loads(shown.pop("pyproject.toml"))["project"]
    for path, text in EXAMPLES.items():
        if path.startswith(("mine/fedmedian", "mine/rings", "mine/algorithm/", "mine/dataset/")):
            place = path.removeprefix("mine/") if path.endswith(".py") else path.replace("mine/", "conf/")
            shown[f"acme_fl/{place}"] = re.sub(r"^_target_: ", "_target_: acme_fl.", text, flags=re.M)
    shown["acme_fl/__init__.py"] = ""
    entries = project["entry-points"][plugin_folders.GROUP]
    shown["acme_fl-1.0.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n"
    shown["acme_fl-1.0.dist-info/entry_points.txt"] = f"[{plugin_folders.GROUP}]\n" + "".join(
        f"{name} = {value}\n" for name, value in entries.items()
    )
    for path, text in shown.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    assert set(re.findall(r"^(acme_fl/\S+)", INDEX.read_text(), re.M)) == {p for p in shown if p.startswith("acme_fl/")}
    return site


def python(site: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=site.parent, env=environment, capture_output=True, text=True
    )


def test_a_package_brings_an_algorithm_a_data_set_and_an_experiment(package: Path) -> None:
    ended = python(package, "-m", "fedlab_runner", "experiment=acme/rings", *TINY)
    assert (ended.returncode, ended.stderr) == (0, "")
    (folder,) = package.parent.glob("outputs/fedmedian-*")
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 2
    config = (folder / "config.yaml").read_text()
    assert "_target_: acme_fl.fedmedian.FedMedian" in config and "_target_: acme_fl.rings.Rings" in config
    code = json.loads((folder / "commands.jsonl").read_text())["code"]
    assert {"acme_fl.fedmedian", "acme_fl.rings"} <= code.keys()


def test_what_a_package_has_is_shown_and_nothing_of_it_is_imported(package: Path) -> None:
    ended = python(package, "-c", LATER)
    assert ended.returncode == 0, ended.stderr
    shown, algorithms, experiments, dataset, words, inner, _ = ended.stdout.split("----\n")
    assert re.search(r"^algorithm: .*\bfedmedian\b", shown, re.M) and re.search(r"^dataset: .*\brings\b", shown, re.M)
    assert "\nfedmedian" in algorithms and algorithms.rstrip().endswith(
        "FedAvg whose server takes the median (Yin et al., 2018)."
    )
    assert re.search(r"^acme/rings +The median on rings: each client has one ring\.$", experiments, re.M)
    assert "_target_: acme_fl.rings.Rings" in dataset
    assert words.split() == ["algorithm=fedma", "algorithm=fedmedian"] and inner.split() == ["experiment=acme/rings"]


def test_a_choice_without_a_comment_is_described_by_its_class(package: Path) -> None:
    conf = package / "acme_fl" / "conf"
    path = conf / "algorithm" / "fedmedian.yaml"
    path.write_text(re.sub(r"^# .*\n", "", path.read_text()))
    ((name, about),) = listing.choices("algorithm", [conf])
    assert (name, about.partition(",")[0]) == (
        "fedmedian",
        "The server's model moves by `server_lr` times the median of the changes that arrive",
    )


def registered(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    entries = [metadata.EntryPoint("name", value, plugin_folders.GROUP) for value in values]
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: entries if group == plugin_folders.GROUP else [])


def test_a_package_inside_another_one_is_found_unimported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer_of_plugin" / "inner" / "conf").mkdir(parents=True)
    (tmp_path / "outer_of_plugin" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "flat_plugin.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    registered(monkeypatch, "outer_of_plugin.inner", "flat_plugin", "gone_plugin.part", "not a module", "x:y", "json")
    assert plugin_folders.modules() == ["flat_plugin", "gone_plugin.part", "json", "outer_of_plugin.inner", "x"]
    assert plugin_folders.conf_dirs() == [tmp_path / "outer_of_plugin" / "inner" / "conf"]
    assert targets.may_be_named("outer_of_plugin.inner.module") and targets.may_be_named("flat_plugin")
    assert not targets.may_be_named("outer_of_plugin.other")
    assert not {"outer_of_plugin", "flat_plugin"} & sys.modules.keys()


def test_python_composes_with_plugins_too(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package))
    cfg = compose("experiment=acme/rings")
    assert (cfg.algorithm._target_, cfg.num_clients) == ("acme_fl.fedmedian.FedMedian", 20)


# Folders.


def test_modules_of_a_folder_on_the_search_path_may_be_named(fedlab: Fedlab) -> None:
    Path("mine").rename("our configs")
    Path("theirs").mkdir()
    searched = "hydra.searchpath=[file://theirs,'file://our configs']"
    small = (*TINY, "model=logistic", "algorithm=fedavg", "hydra.run.dir=here")
    assert fedlab(searched, "delay=bimodal", *small) == (0, "")
    commands = [json.loads(line)["command"] for line in Path("here/commands.jsonl").read_text().splitlines()]
    assert "file://our configs" in commands[0]


def test_a_finished_run_of_a_folders_class_is_read_without_its_class(fedlab: Fedlab) -> None:
    """By a process that has imported nothing."""
    words = ["--config-dir=mine", "delay=bimodal", "model=logistic", "algorithm=fedavg", "hydra.run.dir=here", *TINY]
    assert fedlab(*words) == (0, "")
    ended = subprocess.run([sys.executable, "-c", AGAIN, *words], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "") and "is finished already" in ended.stdout


def test_a_file_cannot_trust_a_folder(fedlab: Fedlab) -> None:
    """Only the command line: a primary config may add a folder of choices, and no code."""
    Path("theirs").mkdir()
    Path("theirs/own.yaml").write_text(
        f"defaults:\n  - train\n  - override delay: bimodal\n  - _self_\nhydra:\n  searchpath: [file://{Path.cwd()}/mine]\n"
    )
    code, line = fedlab("--config-dir=theirs", "--config-name=own", *TINY)
    assert code == 2 and line.startswith("error: delay._target_ ") and line.count("\n") == 1
    assert "bimodal" not in sys.modules


def test_a_choice_in_two_places_is_refused(fedlab: Fedlab) -> None:
    Path("mine/delay/none.yaml").write_text("_target_: bimodal.Bimodal\n")
    code, line = fedlab("--config-dir=mine", "delay=none", *TINY)
    assert code == 2 and line.startswith("error: delay=none is in several places, rename all but one: ")
    assert line.rstrip().endswith(f"{Path.cwd()}/mine/delay/none.yaml") and not Path("outputs").exists()
    same = ("model=logistic", "algorithm=fedavg", "delay=constant")
    assert fedlab(f"--config-dir={listing.conf_dir()}", *TINY, *same) == (0, ""), "one folder twice"


def test_a_folders_choices_are_listed(
    fedlab: Fedlab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine/delay/bimodal.yaml").write_text("_target_: bimodal.Bimodal\n")  # no comment: its class tells
    monkeypatch.setattr(sys, "argv", ["fedlab", "--config-dir=mine", "--list", "delays"])
    assert train.main() == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bimodal ")]
    assert line.split(maxsplit=1)[1].startswith("A `share` of the clients is about `slow` rounds late")
    assert "bimodal" not in sys.modules
    Path("mine/bimodal.py").write_text("def (")
    Path("mine/delay/latin.yaml").write_bytes(b"# M\xfcnchen's.\n")
    Path("mine/delay/other.yaml").write_text("# Clears\x1b[2J it.\n")
    os.mkfifo("mine/delay/pipe.yaml")
    assert train.main() == 0
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    told = {name: "".join(text) for name, *text in shown if Path(f"mine/delay/{name}.yaml").exists()}
    assert told == {
        "bimodal": "",
        "latin": "M\ufffdnchen's.",
        "other": "Clears\\x1b[2J it.",
        "pipe": "is not a plain file",
    }
    assert fedlab("--list", "delays", "--config-dir=nowhere") == (2, "error: --config-dir=nowhere is no folder\n")
