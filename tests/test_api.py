"""Experiments from Python: the documented example runs, and importing the package alone loads nothing heavy."""

import doctest
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry

import fedlab_runner
from fedlab_runner import api, compose, load, run
from fedlab_runner.experiment.export import saved_round
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import SMALL, composed, files


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_documented_example_is_true() -> None:
    tested = doctest.testmod(api, raise_on_error=False)
    assert tested.failed == 0 and tested.attempted == 14


def test_the_package_alone_loads_neither_torch_nor_hydra() -> None:
    code = "import sys, fedlab_runner; assert not {'torch', 'hydra', 'numpy'} & set(sys.modules); fedlab_runner.run"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'ran'"):
        fedlab_runner.ran  # noqa: B018


def test_a_run_from_python_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    overrides = ("algorithm=fedbuff", "rounds=3")
    result = run(compose(*SMALL, *overrides))
    assert result.folder.parent == Path("outputs") and result.folder.name.startswith("fedbuff-")
    run_in(tmp_path / "other", composed(*overrides))
    assert files(result.folder) == files(tmp_path / "other")
    fed = result.federation
    predicted = fed.family.predict(result.models[0], result.simulation.test.inputs).argmax(-1)
    accuracy = (predicted == result.simulation.test.targets).double().mean()
    assert float(accuracy) == result.metrics[-1]["test/accuracy"]


def test_a_finished_run_is_loaded_with_its_state_and_a_longer_one_goes_on() -> None:
    first = run(compose(*SMALL, "algorithm=fedbuff", "rounds=2"), "x")
    again = run(compose(*SMALL, "algorithm=fedbuff", "rounds=2"), "x")
    assert torch.equal(first.models, again.models) and list(first.metrics) == list(again.metrics)
    assert first.summary == again.summary == json.loads(Path("x/summary.json").read_text())
    assert run(compose(*SMALL, "algorithm=fedbuff", "rounds=4"), "x").metrics[-1]["round"] == 4
    with pytest.raises(UserError, match=r"^rounds must be >= 4, got 2: .*; in Python the second argument of run\)"):
        run(compose(*SMALL, "algorithm=fedbuff", "rounds=2"), "x")


@contextmanager
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "within",
    [double, torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu"), elsewhere],
    ids=["float64", "no_grad", "inference_mode", "autocast", "device"],
)
def test_a_run_has_the_numbers_of_the_command_in_a_program_with_other_settings(within: Any) -> None:
    """The program has its settings afterwards."""
    cfg = compose(*SMALL, "algorithm=fedavg", "model=mlp", "rounds=2")
    run(cfg, "plain")
    with within():
        before = settings()
        result = run(cfg, "within")
        assert settings() == before and load("within").module[1].weight.dtype == torch.float32
    assert files(Path("plain")) == files(Path("within")) and result.models.dtype == torch.float32


def settings() -> tuple[Any, ...]:
    nested = torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return torch.get_default_dtype(), torch.get_default_device(), *nested, *modes


def test_a_program_that_uses_hydra_composes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own Hydra is there afterwards, also after a fault, whose line is looked for in all keys."""
    (tmp_path / "theirs.yaml").write_text(f"mine: 1\ndeep: {'[' * 60}{']' * 60}\n")  # deeper than a run's may be
    monkeypatch.setitem(SourcesRegistry.instance().types, "file", FileConfigSource)  # of Hydra
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert compose("seed=3").seed == 3
        with pytest.raises(UserError, match=r"did you mean local\.lr\?$"):
            compose("local.lrr=1")
        assert hydra.compose("theirs").mine == 1


def test_threads_compose() -> None:
    with ThreadPoolExecutor(3) as pool:
        assert [cfg.seed for cfg in pool.map(compose, ["seed=1", "seed=2", "seed=3"])] == [1, 2, 3]


def test_faults_are_one_line() -> None:
    with pytest.raises(UserError, match=r"^local\.lrr is not a key: did you mean local\.lr\?$"):
        compose("local.lrr=1")
    with pytest.raises(UserError, match=r"^hydra\.callbacks\.x\._target_ must be a class of Hydra"):  # as of a command
        compose("+hydra.callbacks.x._target_=os.system")
    with pytest.raises(UserError, match=r"^local\.lr must be > 0, got -1"):
        run(compose("local.lr=-1"))
    with pytest.raises(UserError, match=r"^seed=1,2 has several values: call run once for each of them, or write a"):
        compose("seed=1,2")
    for called in (compose, partial(load, "x")):
        with pytest.raises(UserError, match=r"^an override is a text, such as \"seed=1\", got \['rounds=1'\]: write "):
            called(["rounds=1"])
    with pytest.raises(UserError, match=r"^run takes a config of compose, got a dict: write run\(compose"):
        run({"seed": 1})
    with pytest.raises(UserError, match=r"^the second argument of run is a folder, got '': leave it out for outputs/"):
        run(compose("rounds=0"), "")
    with pytest.raises(UserError, match=r"^the second argument of run is a folder, got 5: leave it out"):
        run(compose("rounds=0"), 5)
    for folder in ("", 3):
        with pytest.raises(
            UserError, match=rf"^the first argument of load is a folder, got {folder!r}: give that of a"
        ):
            load(folder)
    with pytest.raises(UserError, match=r"^cannot read 'dataset\.root=a;b': quote the text within the override: 'data"):
        compose("dataset.root=a;b")
    assert not any(Path().iterdir())


def test_logging_is_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    handlers = logging.root.handlers[:]
    run(compose(*SMALL, "algorithm=fedavg", "rounds=0"))
    assert logging.root.handlers == handlers


def test_the_weights_are_left_where_they_are_asked_for() -> None:
    from safetensors import safe_open

    overrides = (*SMALL, "algorithm=fedavg", "rounds=2", "evaluation.per_class=true")
    run(compose(*overrides), "x")
    assert not Path("x/model.safetensors").exists()
    run_in(Path("x"), compose(*overrides, "logger.save_model=true"))  # finished, but they were not asked for then
    result = run(compose(*overrides), "x")
    with safe_open("x/model.safetensors", "pt") as file:
        names = file.keys()
        saved = {name: file.get_tensor(name) for name in names}
        assert file.metadata() == {"fedlab_runner": '{"round": 2, "models": 1}'}
    wanted = result.federation.family.state_dict(result.models[0])
    assert saved.keys() == wanted.keys() and all(torch.equal(saved[name], wanted[name]) for name in wanted)


def test_a_longer_run_leaves_no_weights_and_pictures_of_a_shorter_one() -> None:
    """It gets its own where they are asked for later. What is drawn at the start stays."""
    overrides, asked = (*SMALL, "algorithm=fedavg"), ("logger.save_model=true", "logger.pictures=true")
    run(compose(*overrides, *asked, "rounds=1"), "x")
    for name in ("curves", "partition"):
        Path("x/plots").mkdir(exist_ok=True)
        Path(f"x/plots/{name}.png").touch()
    run_in(Path("x"), compose(*overrides, *asked, "rounds=1"))
    run_in(Path("x"), compose(*overrides, "rounds=1", "checkpoint.keep=1"))
    assert saved_round(Path("x/model.safetensors")) == 1 and Path("x/plots/curves.png").exists()
    run_in(Path("x"), compose(*overrides, "rounds=2", "logger.pictures=false"))
    assert saved_round(Path("x/model.safetensors")) is None
    assert [path.name for path in Path("x/plots").iterdir()] == ["partition.png"]
    run_in(Path("x"), compose(*overrides, *asked[:1], "rounds=2"))
    assert saved_round(Path("x/model.safetensors")) == 2


def test_several_models_have_numbers(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from fedlab_runner.experiment.export import save_models

    result = run(compose(*SMALL, "algorithm=fedavg", "rounds=0"))
    (w,), family = result.models, result.federation.family
    save_models(tmp_path / "models", [(family, w), (family, 2 * w)], 7)
    saved = load_file(tmp_path / "models")
    assert len(saved) == 2 * len(family.state_dict(w))
    assert all(torch.equal(saved[f"1.{name}"], 2 * value) for name, value in family.state_dict(w).items())


def test_the_last_accuracy_on_each_class_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedlab_runner.tracking.recorder import Recorder

    tables = {}
    monkeypatch.setattr(Recorder, "table", lambda _, name, columns, rows: tables.update({name: (columns, rows)}))
    metrics = run(compose(*SMALL, "algorithm=fedavg", "rounds=1", "evaluation.per_class=true")).metrics
    columns, rows = tables["per_class"]
    assert columns == ["class", "accuracy"] and [name for name, _ in rows] == [str(c) for c in range(10)]
    assert [value for _, value in rows] == [metrics[-1][f"test/accuracy_class/{c}"] for c in range(10)]
