"""The pages on extending: each example is written out, run by the command of its page, and looked at."""

import csv
import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedlab_runner.core.executor import Executor
from tests.helpers.extending import EXAMPLES, INDEX, PAGES, Fedlab, command, fedlab, files
from tests.helpers.paths import ROOT

__all__ = ["fedlab"]  # a fixture
SMALL = ("num_clients=12", "participation.cohort_size=3", "local.epochs=1", "logger=none", "device=cpu", "rounds=3")
SIMPLE = (*SMALL, "model=logistic", "algorithm=fedavg", "delay=none")


def summary(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "summary.json").read_text())
    return found


def test_each_page_has_a_module_and_a_choice_and_its_row_in_the_index() -> None:
    assert set(PAGES) == {"algorithm", "dataset", "partition", "delay", "model", "executor", "server_data"}
    for group, page in PAGES.items():
        module, choice = files(page)
        assert choice == f"mine/{group}/{Path(module).stem}.yaml" and f"(extending/{page.name})" in INDEX.read_text()


def test_the_contracts_are_where_the_index_says() -> None:
    rows = re.findall(r"^\| \S+ .*? \| (`.*?) in `(.*?)` \|", INDEX.read_text(), re.M)
    assert len(rows) == len(PAGES)
    for names, path in rows:
        module = import_module(f"fedlab_runner.{path.removesuffix('.py').replace('/', '.')}")
        assert all(hasattr(module, name) for name in re.findall(r"`(\w+)`", names))


def test_the_examples_are_formatted_as_the_code_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for path, text in EXAMPLES.items():
        if path.endswith(".py"):
            (tmp_path / path).write_text(text)
    for how in (["check"], ["format", "--check"]):
        arguments = [*how, "--config", str(ROOT / "pyproject.toml"), "--isolated" if how == ["-"] else "--no-cache"]
        ended = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, str(tmp_path)], text=True, capture_output=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow  # a minute without mypy's cache
def test_the_examples_have_right_types(tmp_path: Path) -> None:
    for path, text in EXAMPLES.items():
        if path.endswith(".py"):
            (tmp_path / Path(path).name).write_text(text)
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    configured = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    checked = [str(path) for path in tmp_path.glob("*.py")]
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", *configured, *checked], env=environment, text=True, capture_output=True
    )
    assert ended.returncode == 0, ended.stdout


# One page each.


def test_an_algorithm(fedlab: Fedlab) -> None:
    """The median of a single change is the change: FedAvg."""
    own = command(PAGES["algorithm"])
    alone = (*SMALL, "model=logistic", "delay=none", "participation.cohort_size=1")
    assert fedlab(*own, *alone, "hydra.run.dir=median") == (0, "")
    assert fedlab(*alone, "algorithm=fedavg", "hydra.run.dir=mean") == (0, "")
    assert summary("median")["last"] == summary("mean")["last"] > 0
    assert fedlab(*own, *SMALL, "model=logistic", "hydra.run.dir=three") == (0, "")
    assert fedlab(*own, "algorithm.server_lr=0") == (2, "error: algorithm.server_lr must be > 0, got 0.0\n")


def test_the_signatures_of_additions(fedlab: Fedlab) -> None:
    """The three functions of the page train, with the received model as their anchor."""
    (functions,) = re.findall(r"<!-- signatures -->\n```python\n(.*?)```", PAGES["algorithm"].read_text(), re.S)
    (asked,) = re.findall(r"cohort\.train\(x, .*?\)\)?(?=`)", PAGES["algorithm"].read_text())
    module = Path("mine/fedmedian.py")
    text = module.read_text().replace("cohort.train(x)", asked.replace("anchor", "x[: cohort.family.num_params]"))
    module.write_text(f"{text}\n\n{functions}")
    assert fedlab(*command(PAGES["algorithm"]), *SMALL, "model=logistic", "hydra.run.dir=own") == (0, "")
    assert summary("own")["objective"] > 0.3


MOON = """
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Models
from fedlab_runner.algorithms.shared.classifier_head import head_logits, identity_head
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.client_state import RowRef
from fedlab_runner.core.losses import losses
"""


def test_what_clients_keep(fedlab: Fedlab) -> None:
    """MOON without its contrast is FedAvg; with it the clients' last models matter, and the executor does not."""
    (classes,) = re.findall(r"<!-- moon -->\n```python\n(.*?)```", PAGES["algorithm"].read_text(), re.S)
    Path("mine/moon.py").write_text(MOON + classes)
    choice = "_target_: moon.MOON\nmu: 0.0\ntau: 0.5\nstore_on: device\n"
    Path("mine/algorithm/moon.yaml").write_text(choice)
    how = ("--config-dir=mine", *SMALL, "model=mlp", "delay=none", "algorithm=moon", "participation.cohort_size=12")

    def loss(*overrides: str) -> float:
        folder = f"hydra.run.dir=run{len(list(Path().glob('run*')))}"
        assert fedlab(*how, *overrides, folder) == (0, "")
        last = Path(folder.partition("=")[2], "metrics.jsonl").read_text().splitlines()[-1]
        return float(json.loads(last)["test/loss"])

    assert loss() == pytest.approx(loss("algorithm=fedavg"), rel=1e-5)
    side_by_side = loss("algorithm.mu=1", "executor=vectorized")
    assert loss("algorithm.mu=1", "executor=loop") == pytest.approx(side_by_side, rel=1e-5)
    assert abs(side_by_side - loss()) > 1e-3


def test_own_classes_from_python(fedlab: Fedlab) -> None:
    (program,) = re.findall(r"<!-- program: \S+ -->\n```python\n(.*?)```", INDEX.read_text(), re.S)
    space: dict[str, Any] = {}
    exec(program, space)
    assert space["result"].summary["rounds"] == 2 and len(space["network"].state_dict()) == 6


def test_a_data_set(fedlab: Fedlab) -> None:
    own = command(PAGES["dataset"])
    training = ("algorithm=fedavg", "delay=none", "local.lr=0.5", "local.epochs=5", "rounds=30", "threads=1")
    clients = ("num_clients=8", "participation.cohort_size=8", "logger=none", "device=cpu")
    assert fedlab(*own, *training, *clients, "hydra.run.dir=rings") == (0, "")
    assert summary("rings")["objective"] > 0.6  # half of the points by chance
    examples = sys.modules["rings"].Rings(size=600, turns=1.0, rings=4).load(0).train
    assert examples.strata.unique().tolist() == [0, 1, 2, 3]
    assert ((4 * examples.inputs.norm(dim=1)).floor() == examples.strata).float().mean() > 0.99
    assert fedlab(*own, "dataset.turns=-1") == (2, "error: dataset.turns must be > 0, got -1.0\n")


def test_a_partition(fedlab: Fedlab) -> None:
    own = command(PAGES["partition"])
    assert fedlab(*own, *SIMPLE, "partition.share=1", "hydra.run.dir=main") == (0, "")
    with Path("main/partition.csv").open() as file:
        rows = list(csv.DictReader(file))
    main_class = sys.modules["main_class"].MainClass
    labels = np.repeat(np.arange(10), 100)
    split = main_class(1.0).split(labels, None, 12, np.random.default_rng(0))
    assert len(rows) == len(split) == 12 and sorted(np.concatenate(split)) == list(range(1000))
    assert [set(labels[part]) for part in split] == [{client % 10} for client in range(12)]
    half = main_class(0.5).split(labels, None, 10, np.random.default_rng(0))
    assert 0.5 < np.mean([(labels[part] == client).mean() for client, part in enumerate(half)]) < 0.6
    code, line = fedlab(*own, *SIMPLE, "num_clients=5")
    assert code == 2 and line.endswith("error: num_clients must be at least 10, the number of classes, got 5\n")


def test_a_delay(fedlab: Fedlab) -> None:
    own = [each for each in command(PAGES["delay"]) if not each.startswith("delay.")]
    late = ("algorithm=fedavg", "model=logistic", "delay.share=1", "delay.slow=2", "rounds=20")
    assert fedlab(*own, *SMALL, *late, "hydra.run.dir=late") == (0, "")
    rows = [json.loads(line) for line in Path("late/metrics.jsonl").read_text().splitlines()]
    assert max(row.get("late/staleness_max", 0) for row in rows) >= 2
    drawn = sys.modules["bimodal"].Bimodal("client", 0.25, 1.0, 1e4).sample(np.random.default_rng(0), np.arange(2000))
    assert drawn.dtype == np.int64 and 0.2 < (drawn > 5000).mean() < 0.3 and 0.9 < drawn[drawn < 5000].mean() < 1.1
    assert fedlab(*own, "delay.share=2") == (2, "error: delay.share must be in [0, 1], got 2.0\n")


def test_a_model(fedlab: Fedlab) -> None:
    own, rest = command(PAGES["model"]), [each for each in SIMPLE if not each.startswith("model=")]
    for executor in ("loop", "vectorized"):
        folder = f"hydra.run.dir={executor}"
        assert fedlab(*own, *rest, f"executor={executor}", folder, "rounds=5", "local.epochs=5") == (0, "")
        assert summary(executor)["objective"] > 0.2
    values = 64 * 64 + 64 + 64 * 10 + 10
    (*_, last) = map(json.loads, Path("loop/metrics.jsonl").read_text().splitlines())
    assert last["comm/download_mb"] == pytest.approx(3 * 4 * values / 1e6)


def test_an_executor(fedlab: Fedlab) -> None:
    own = command(PAGES["executor"])
    assert fedlab(*own, *SIMPLE, "hydra.run.dir=reverse") == (0, "")
    assert fedlab(*SIMPLE, "executor=loop", "hydra.run.dir=loop") == (0, "")
    assert Path("reverse/metrics.jsonl").read_bytes() == Path("loop/metrics.jsonl").read_bytes()
    logged = "".join(path.read_text() for path in Path("reverse").glob("*.log"))
    assert len(re.findall(r"round \d trains clients \[\d+, \d+, \d+\]", logged)) == 3


def test_the_executor_takes_what_the_contract_gives(fedlab: Fedlab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short run above asks not for all of it."""
    command(PAGES["executor"])
    monkeypatch.syspath_prepend("mine")
    own = import_module("reverse").Reverse
    for name, method in inspect.getmembers(Executor, inspect.isfunction):
        if not name.startswith("_"):
            assert [*inspect.signature(getattr(own, name)).parameters] == [*inspect.signature(method).parameters]


def test_server_data(fedlab: Fedlab) -> None:
    own = command(PAGES["server_data"])
    (program,) = re.findall(r"<!-- program: \S+ -->\n```python\n(.*?)```", PAGES["server_data"].read_text(), re.S)
    exec(program, {})
    assert fedlab(*own, *SMALL, "hydra.run.dir=page") == (0, ""), "as the page has it"
    digits = load_digits()
    inputs = (digits.images[:200, None] * 255 / 16).round().astype(np.uint8)
    np.savez("server.npz", inputs=inputs, targets=digits.target[:200])
    arguments = [each for each in SIMPLE if not each.startswith("algorithm=")]
    assert fedlab(*own, *arguments, "hydra.run.dir=fedft") == (0, "")
    assert summary("fedft")["objective"] > 0.5
    np.savez("server.npz", inputs=inputs[..., :4], targets=digits.target[:200])
    code, line = fedlab(*own, *arguments, "seed=1")
    assert code == 2 and line.endswith("inputs as the model's, torch.uint8 [n, 1, 8, 8]\n") and line.count("\n") == 1
    np.savez("server.npz", x=inputs, targets=digits.target[:200])
    code, line = fedlab(*own, *arguments, "seed=1")
    assert code == 2 and line.endswith("server.npz must hold inputs and targets, got x, targets\n")
    Path("server.npz").unlink()
    code, line = fedlab(*own, *arguments, "seed=1")
    assert (code, line) == (2, "error: server_data: there is no file server.npz: write it with numpy.savez\n")
