"""Files, archives, configs and keys that mean harm: nothing in them is executed, and no key is written down."""

import ast
import contextlib
import copy
import json
import os
import pickle
import socket
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import fedlab_runner
from fedlab_runner import train
from fedlab_runner.checkpoints.store import CheckpointStore
from fedlab_runner.config import secrets, targets
from fedlab_runner.config.build import build
from fedlab_runner.datasets.femnist import NPZ
from fedlab_runner.delays.from_file import DelayFromFile
from fedlab_runner.experiment.run import prepare, run_in
from fedlab_runner.models._torch import read_weights
from fedlab_runner.report import cli as report
from fedlab_runner.utils import plugin_folders
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import write_atomically
from tests.helpers.composed import SMALL, composed
from tests.helpers.in_process import own_handlers
from tests.helpers.paths import ROOT
from tests.helpers.wandb_server import Trouble, WandbServer

SOURCES = sorted(Path(fedlab_runner.__path__[0]).rglob("*.py"))
FIXTURE = [HealthCheck.function_scoped_fixture]  # the mark must never be there, so that it may be shared
QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=FIXTURE)
KEY = "0123456789abcdef0123456789abcdef01234567"


# What the package may call


def _name(node: ast.expr) -> str:
    return f"{_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _calls(path: Path) -> list[tuple[str, dict[str, Any]]]:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [
        (_name(call.func), {k.arg or "**": getattr(k.value, "value", None) for k in call.keywords}) for call in calls
    ]


FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen"),
    *("pickle.load", "pickle.loads", "joblib.load", "shelve.open", "marshal.loads", "marshal.load", "torch.hub.load"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle"),
    *("scipy.io.loadmat", "loadmat", "matlab.loadmat"),  # ends the process at a damaged file
    *("shutil.unpack_archive", "download_and_extract_archive", "extract_archive"),
}


# Both ends of a socket pair are processes of one run, and what a worker sends back is what Ray itself unpickles. Copies
# of configs are made of what the same process has pickled.
WORKERS = ("executors/_messages", "_ray/session", "_gpus/team", "_gpus/worker")
ALLOWED = {name: {"pickle.loads"} for name in (*WORKERS, "config/config_files")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_code_reads_what_could_run_code(path: Path) -> None:
    for name, passed in _calls(path):
        assert name not in FORBIDDEN - ALLOWED.get(f"{path.parent.name}/{path.stem}", set()) and not name.endswith(
            (".extractall", ".extract")
        ), name
        assert name != "torch.load" or passed.get("weights_only") is True
        assert name not in ("np.load", "numpy.load") or passed.get("allow_pickle") is False
        assert passed.get("shell") is not True, name


def test_the_search_for_such_calls_finds_them(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import torch\ntorch.load(f, weights_only=True)\ntar.extractall(p)\neval('1')\nsub.run(x, shell=True)"
    )
    names = [name for name, _ in _calls(path)]
    assert {"torch.load", "tar.extractall", "eval"} <= set(names)
    assert ("torch.load", {"weights_only": True}) in _calls(path) and ("sub.run", {"shell": True}) in _calls(path)


class Harm:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_torch_file_runs_nothing(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2), "x": Harm(tmp_path / "harm")}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="which cannot be read"):
        read_weights(str(tmp_path / "weights.pt"), "hint")
    assert not (tmp_path / "harm").exists()


def test_a_checkpoint_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a right header and right digests, as somebody who means harm would make it."""
    from fedlab_runner.checkpoints import store

    harm = Harm(tmp_path / "harm")
    path = tmp_path / "checkpoints" / "round_000001.pt"
    write_atomically(path, lambda file: store._write(file, 1, {}, {"state": harm}))
    with pytest.raises(UserError, match=r"is damaged \(it cannot be read: UnpicklingError\)"):
        CheckpointStore(tmp_path, 2).load({})
    assert not (tmp_path / "harm").exists()


# Data files that claim or nest more than there is


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_an_array_of_any_claimed_size_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "femnist"
    folder.mkdir()
    with zipfile.ZipFile(folder / NPZ, "w") as file:
        for name in ("images", "labels", "writer", "split"):
            file.writestr(f"{name}.npy", npy_header((2**46,)))
    cfg = composed("dataset=femnist", f"dataset.root={tmp_path}", "partition=natural", "model=logistic", small=False)
    with pytest.raises(UserError, match="is damaged"):
        build(cfg).dataset.load(0)
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as file:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            file.writestr(f"{name}.npy", npy_header((2**46,)))
    with pytest.raises(UserError, match=r"own\.npz cannot be read"):
        build(composed("dataset=npz", f"dataset.path={tmp_path}/own.npz", small=False)).dataset.load(0)
    (tmp_path / "delays.npy").write_bytes(npy_header((2**46,)))
    with pytest.raises(UserError, match=r"cannot be read"):
        DelayFromFile(draw="client", path=str(tmp_path / "delays.npy")).sample(np.random.default_rng(0), np.arange(3))


def test_json_nested_without_end_is_refused(tmp_path: Path) -> None:
    nested = "[" * 100_000
    for part in ("train", "test"):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        (tmp_path / "femnist" / part / "a.json").write_text(nested)
    cfg = composed("dataset=femnist", f"dataset.root={tmp_path}", "partition=natural", "model=logistic", small=False)
    with pytest.raises(UserError, match="is not a json file of LEAF"):
        build(cfg).dataset.load(0)
    (tmp_path / "delays.json").write_text(nested)
    with pytest.raises(UserError, match="nested too deeply"):
        DelayFromFile(draw="client", path=str(tmp_path / "delays.json")).sample(np.random.default_rng(0), np.arange(3))


# Configs


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "os.mkdir", "path": "harm"},
        {"_target_": "subprocess.Popen", "args": ["touch", "harm"]},
        {"_target_": "builtins.eval", "_args_": ["1"]},
        {"_target_": "builtins.exec"},
        {"_target_": "fedlab_runner.algorithms.fedavg.FedAvg", "_args_": ["x"]},
        {"_target_": "fedlab_runner.algorithms.fedavg.FedAvg", "_partial_": True},
        {"_target_": "hydra.utils.get_method", "path": "os.system"},
    ],
    ids=lambda node: " ".join(map(str, node.values())),
)
@pytest.mark.parametrize("where", ["algorithm", "model", "dataset", "executor"])
def test_a_config_names_dataclasses_and_nothing_else(
    where: str, node: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = composed()
    cfg[where] = node
    with pytest.raises(UserError, match=rf"^{where}\."):
        build(cfg)
    assert not list(tmp_path.iterdir())


PAYLOAD = """
from dataclasses import dataclass
from pathlib import Path

Path(__file__).with_name("mark").touch()

def call(*args, **kwargs):
    Path(__file__).with_name("mark").touch()
    return call

@dataclass
class Everything:
    def __post_init__(self):
        call()

    def __getattr__(self, name):
        return call
"""
NAMED = ["payload.call", "payload.Everything", "torch.hub._import_module", "os.mkdir", "builtins.exec", "logging.call"]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once the module `payload`, which can be imported here, was imported or called."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "payload.py").write_text(PAYLOAD)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with own_handlers():
        yield folder / "mark"
    sys.modules.pop("payload", None)


def harmful(target: str, folder: Path) -> dict[str, Any]:
    """A node that leaves the mark when it is called, whatever of it is given as what."""
    more = {"torch.hub._import_module": {"name": "payload", "path": str(folder / "payload.py")}}
    more |= {"os.mkdir": {"path": str(folder / "mark")}, "builtins.exec": {"_args_": ["import payload"]}}
    return {"_target_": target, **more.get(target, {})}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a config, those of containers too."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, child in inner for each in places(child, (*path, key)))] if path or inner else []


def everywhere() -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """A config that has nested components, lists and mappings, and its places."""
    cfg = composed("algorithm=fedwalk", "server_data=torchvision", "executor=processes", "+model.kwargs={a: [1]}")
    values = OmegaConf.to_container(cfg)
    assert isinstance(values, dict)
    return values, [each for each in places(values) if each]


@pytest.mark.parametrize("target", NAMED)
def test_a_target_is_called_at_no_place_of_a_config(target: str, mark: Path) -> None:
    values, paths = everywhere()
    assert len(paths) > 100
    for i, path in enumerate(paths[NAMED.index(target) :: 6]):  # each place gets one of the six
        node: Any = harmful(target, mark.parent)
        for wrap in range(i % 4):  # deeper: in lists, in mappings, in arguments of what is allowed
            node = [[node], {"inner": node}, {"_target_": "fedlab_runner.models.mix.Mix", "models": [node]}][wrap % 3]
        cfg = copy.deepcopy(values)
        at = cfg
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = node
        with pytest.raises(UserError) as caught:
            build(OmegaConf.create(cfg))
        assert not mark.exists() and str(caught.value), path


@QUICK
@given(data=st.data())
def test_generated_targets_call_nothing(data: st.DataObject, mark: Path) -> None:
    """At several places at once, nested at random, with other faults beside them."""
    values, paths = everywhere()
    leaf = st.sampled_from([harmful(target, mark.parent) for target in NAMED])
    nodes = st.recursive(leaf, lambda n: st.lists(n, max_size=2) | st.dictionaries(st.text("ab_", max_size=2), n))
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3)):
        at: Any = values
        with contextlib.suppress(KeyError, IndexError, TypeError):  # the place is gone by another one's node
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = data.draw(nodes)
    with contextlib.suppress(UserError):
        build(OmegaConf.create(values))
    assert not mark.exists()


CALL = "{_target_: payload.call}"
OF_HYDRA = [
    f"hydra: {{callbacks: {{x: {CALL}}}}}",
    f"hydra: {{callbacks: {{sweep: {CALL}}}}}",
    f"hydra: {{callbacks: {{sweep: {{more: {CALL}}}}}}}",
    f"x: {CALL}\nhydra: {{callbacks: '${{x}}'}}",
    f"x: {CALL}\nhydra: {{callbacks: {{a: '\\${{x}}'}}}}",
    f"hydra: {{launcher: {CALL}}}",
    f"hydra: {{sweeper: {CALL}}}",
    f"hydra: {{sweeper: {{params: {CALL}}}}}",
    "hydra: {job_logging: {handlers: {x: {(): payload.call}}, root: {handlers: [x]}}}",
    "hydra: {job_logging: {handlers: {x: {class: payload.call}}, root: {handlers: [x]}}}",
    "hydra: {job_logging: {formatters: {console: {class: payload.Everything}}}}",
    "hydra: {job_logging: {handlers: {console: {x: 'ext://payload.call'}}}}",
    "hydra: {hydra_logging: {handlers: {x: {class: payload.call}}, root: {handlers: [x]}}}",
    "hydra: {job_logging: {handlers: {file: {filename: mark}}}}",
    "hydra: {job: {env_set: {PYTHONSTARTUP: payload.py}}}",
    "hydra: {job_logging: {formatters: {console: {datefmt: '${now:ext://payload.call}'}}}}",
    "hydra: {job_logging: {formatters: {console: {datefmt: 'ext:${now://payload.call}'}}}}",
    "hydra: {job: {name: 'ext://payload.call'}, job_logging: {handlers: {file: {mode: '${hydra.job.name}'}}}}",
    "hydra: {hydra_logging: {formatters: {simple: {format: '${now:ext://payload.call}'}}}}",
    "hydra: {runtime: {output_dir: 'ext:/'}, "
    "hydra_logging: {root: {level: '${hydra.runtime.output_dir}/payload.call'}}}",
    "hydra: {job_logging: {handlers: {file: {filename: '${now:ext://payload.}log'}}}}",
    "hydra: {job_logging: {handlers: {file: {delay: true, .: {baseFilename: mark}}}}}",
    "defaults: [override /hydra/sweeper: optuna]\nhydra: {sweeper: {custom_search_space: payload.call}}",
    *(
        f"hydra: {{callbacks: {{x: {{_target_: {module}.logging.FileHandler, filename: mark}}}}}}"
        for module in ("hydra.experimental.callbacks", "hydra_plugins.hydra_optuna_sweeper._impl.optuna.logging")
    ),
    f"logger: {{tags: [[{CALL}]]}}",
    f"local: {{lr: [{CALL}]}}",
    f"seed: [{CALL}]",
    f"defaults: [override /model: timm]\nmodel: {{kwargs: {CALL}}}",
]


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        *((text, ("--run", "--multirun")[i % 2]) for i, text in enumerate(OF_HYDRA)),
        *(
            pytest.param(text, ("--multirun", "--run")[i % 2], marks=pytest.mark.slow)
            for i, text in enumerate(OF_HYDRA)
        ),
        *((text, mode) for text in (OF_HYDRA[0], OF_HYDRA[12]) for mode in ("--cfg=hydra", "--help", "--info=all")),
    ],
)
def test_an_experiment_file_calls_nothing(
    text: str, mode: str, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in one of the two modes, which compose alike; the other one of each is a slow test."""
    (mark.parent / "conf" / "experiment").mkdir(parents=True)
    (mark.parent / "conf" / "experiment" / "theirs.yaml").write_text(f"# @package _global_\n{text}\n")
    monkeypatch.setattr(sys, "argv", ["fedlab", mode, "--config-dir=conf", *SMALL, "rounds=1", "experiment=theirs"])
    with contextlib.suppress(SystemExit):
        assert train.main() in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert not mark.exists()
    assert not [path for path in mark.parent.rglob("metrics.jsonl")]


@pytest.mark.parametrize(
    "argument",
    [
        "logger.tags=[[{_target_:torch.hub._import_module,name:payload,path:payload.py}]]",
        "local.lr=[{_target_:os.mkdir,path:mark}]",
        "seed=[{_target_:payload.call}]",
        "dataset._target_=payload.Everything",
        "+hydra.callbacks.x._target_=payload.call",
        "--experimental-rerun=payload.pickle",
    ],
)
def test_an_argument_calls_nothing(
    argument: str, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (mark.parent / "payload.pickle").write_bytes(pickle.dumps(Harm(mark)))
    monkeypatch.setattr(sys, "argv", ["fedlab", *SMALL, "rounds=1", argument])
    assert train.main() == 2
    assert all(line.startswith("error: ") for line in capsys.readouterr().err.splitlines())
    assert not mark.exists() and not (mark.parent / "outputs").exists()


def test_a_run_folder_of_strangers_calls_nothing(
    mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config.yaml, given to a report and given back as the config of a run."""
    run_in(tmp_path / "run", composed("rounds=1"))
    whole = OmegaConf.load(tmp_path / "run" / "config.yaml")
    nodes: list[Any] = [{"_target_": "payload.call"}, [{"_target_": "payload.Everything"}]]
    for i, key in enumerate(whole):
        for node in nodes if key in ("algorithm", "logger") else nodes[i % 2 :][:1]:
            saved = OmegaConf.merge(OmegaConf.masked_copy(whole, [each for each in whole if each != key]), {key: node})
            with pytest.raises(UserError):
                build(saved)
            if key in ("algorithm", "logger"):
                OmegaConf.save(saved, tmp_path / "run" / "config.yaml")
                with contextlib.suppress(SystemExit):
                    report.main([str(tmp_path / "run"), "--out", str(tmp_path / "report")])
                monkeypatch.setattr(sys, "argv", ["fedlab", f"--config-dir={tmp_path / 'run'}", "--config-name=config"])
                assert train.main() == 2
            assert not mark.exists()


# Modules of one's own

MINE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    size: int

    def load(self, seed):
        raise ValueError("size must be larger")
"""


@pytest.mark.parametrize("name", ["mine_alone", "mine_package.inner"])
def test_a_module_in_the_config_dir_may_be_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "conf" / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True)
    path.write_text(MINE)
    (tmp_path / "conf" / "dataset").mkdir()
    (tmp_path / "conf" / "dataset" / "mine.yaml").write_text(f"_target_: {name}.Mine\nsize: 3\n")
    monkeypatch.setattr(sys, "argv", ["fedlab", "--config-dir=conf", *SMALL, "dataset=mine"])
    assert train.main() == 2
    assert capsys.readouterr().err == "error: dataset.size must be larger\n"
    monkeypatch.setattr(sys, "argv", ["fedlab", *SMALL, f"dataset._target_={name}.Mine"])
    for module in (name, name.partition(".")[0]):
        sys.modules.pop(module, None)
    assert train.main() == 2 and "dataset._target_" in capsys.readouterr().err


def test_an_installed_plugin_may_be_named_and_nothing_beside_it(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("payload", "payload", plugin_folders.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: [entry] if group == plugin_folders.GROUP else [])
    assert targets.may_be_named("payload") and targets.may_be_named("payload.inner") and not mark.exists()
    assert not targets.may_be_named("os") and not targets.may_be_named("torch.hub")
    with pytest.raises(ValueError, match="no module named 'payloads'"):
        targets.may_be_named("payloads")


def test_a_module_that_hides_behind_an_installed_one_is_not_taken(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("yaml", "json", "wandb", "payload"):
        (mark.parent / "conf").mkdir(exist_ok=True)
        (mark.parent / "conf" / f"{name}.py").write_text(PAYLOAD)
        monkeypatch.setattr(targets, "config_dirs", lambda: [mark.parent / "conf"])
        assert not targets.may_be_named(name), "another one of the name comes first"
        with pytest.raises(ValueError, match=f"conf/{name}.py has the name of a module .*: rename it, got '{name}.X'"):
            targets.find_class(f"{name}.X")
    assert not mark.exists() and not (mark.parent / "conf" / "mark").exists()


@pytest.mark.parametrize(
    "value",
    ["__import__('os').mkdir('harm')", "$(mkdir harm)", "`mkdir harm`", "!!python/object/apply:os.mkdir [harm]"],
)
def test_values_stay_text(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = composed("logger=wandb")
    cfg.logger.name = value
    assert build(cfg).logger.name == value and not list(tmp_path.iterdir())


def test_sizes_that_nothing_can_hold_are_refused() -> None:
    cfg = composed("model.image_size=1e30")
    with pytest.raises(UserError, match=r"^model\.image_size must be a whole number or null, got 1e\+30"):
        build(cfg)
    cfg = composed("model.image_size=10000000000")
    with pytest.raises(UserError, match=r"^model\.image_size must be in \[1, 4096\], got "):
        prepare(build(cfg))


def test_no_resolver_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("${eval:1+1}", "${python:1}", "${oc.exec:ls}"):
        cfg = composed("logger=wandb")
        cfg.logger.name = text
        with pytest.raises(UserError, match=r"logger\.name"):
            build(cfg)


# Keys


def fedlab(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A run in a process of its own; what it said."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    ours |= {"HOME": str(folder), "NO_PROXY": "127.0.0.1"}
    ours |= {f"WANDB_{name}_DIR": str(folder / name.lower()) for name in ("CACHE", "DATA", "CONFIG")}
    ours["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ours.get('PYTHONPATH', '')}"
    small = [each for each in SMALL if not each.startswith("logger")]
    command = [sys.executable, "-m", "fedlab_runner.train", *small, "algorithm=fedavg", "server_data=none", "rounds=1"]
    return subprocess.run(
        [*command, "logger.mode=online", "logger.init_timeout=1", *arguments],
        cwd=folder,
        env=ours | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def assert_no_key(folder: Path, process: "subprocess.CompletedProcess[str]", *, but: tuple[str, ...] = ()) -> None:
    assert KEY not in process.stdout + process.stderr
    written = [path for path in folder.rglob("*") if path.is_file() and path.name not in but]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    "way", ["environment", *(pytest.param(w, marks=pytest.mark.slow) for w in ("netrc", "settings"))]
)
def test_a_key_is_written_nowhere(way: str, tmp_path: Path) -> None:
    environment = {}
    if way == "environment":
        environment = {"WANDB_API_KEY": KEY}
    elif way == "netrc":
        (tmp_path / ".netrc").write_text(f"machine 127.0.0.1\n  login user\n  password {KEY}\n")
        (tmp_path / ".netrc").chmod(0o600)
    else:
        (tmp_path / "wandb").mkdir()
        (tmp_path / "wandb" / "settings").write_text(f"[default]\napi_key = {KEY}\n")
    with WandbServer() as server:
        server.trouble = Trouble(401, "user is not logged in")
        process = fedlab(tmp_path, WANDB_BASE_URL=server.url, **environment)
        assert server.refused
    assert process.returncode == 0, process.stderr
    assert "continues with logger.mode=offline" in process.stdout + process.stderr
    [run] = (tmp_path / "outputs").glob("fedavg-*")
    assert {"config.yaml", "commands.jsonl", "checkpoints", "train.log"} <= {path.name for path in run.iterdir()}
    assert_no_key(tmp_path, process, but=(".netrc", "settings"))


@pytest.mark.parametrize(
    "argument",
    [
        f"logger.name={KEY}",
        f"logger.tags=[a,{KEY}]",
        f"logger.api_key={KEY}",
        f"+wandb_api_key={KEY}",
        f"+hydra.job.env_set.WANDB_API_KEY={KEY}",
        "logger.name=${oc.env:WANDB_API_KEY}",
    ],
)
def test_a_key_in_the_command_is_refused(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    small = [each for each in SMALL if not each.startswith("logger")]
    monkeypatch.setattr(sys, "argv", ["fedlab", *small, "logger.mode=disabled", argument])
    assert train.main() == 2
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert line.startswith("error: ") and "holds a W&B key" in line and KEY not in shown.out + shown.err
    assert not list(tmp_path.iterdir())


ENV = "${oc.env:WANDB_API_KEY}"


BY_INTERPOLATION: list[dict[str, Any]] = [
    {"logger.name": f"\\{ENV}"},
    {"logger.name": f"\\\\\\{ENV}"},
    {"logger.name": f"x\\{ENV}y"},
    {"logger.name": "${oc.decode:'${oc.env:WANDB_API_KEY}'}"},
    {"logger.name": "${oc.env:WANDB_${logger.project}}", "logger.project": "API_KEY"},
    {"logger.name": "${oc.env:NOBODY_SETS_THIS,${oc.env:WANDB_API_KEY}}"},
    {"logger.name": "${oc.deprecated:seed,'${oc.env:WANDB_API_KEY}'}"},
    {"logger.name": "${oc.env:COPY_OF_IT}"},
    {"logger.tags": [["a", ENV]]},
    {"logger.project": "${logger.entity}", "logger.entity": ENV},
    {"local.lr": ENV},
    {"local.lr": "${${oc.env:WANDB_API_KEY}}"},
    {"hydra.job.name": ENV},
    {"hydra.run.dir": f"outputs/{ENV}", "hydra.sweep.dir": f"outputs/{ENV}"},
    {"hydra.run.dir": "here", "hydra.sweep.dir": "here", "logger.name": KEY},
    {"hydra.sweep.subdir": ENV, "hydra.run.dir": f"\\{ENV}/{ENV}"},
    {"hydra.output_subdir": f"{ENV}"},
]
WAYS = [("arguments", "--run"), ("experiment", "--multirun"), ("arguments", "--multirun"), ("experiment", "--run")]


def _of_hydra(changes: dict[str, Any], way: str, mode: str) -> bool:
    return any(key.startswith("hydra") for key in changes) and (way, mode) in WAYS[:2]


@pytest.mark.parametrize(
    ("changes", "way", "mode"),
    [
        pytest.param(changes, *way, marks=[pytest.mark.slow] * (i % 4 != j and not _of_hydra(changes, *way)))
        for i, changes in enumerate(BY_INTERPOLATION)
        for j, way in enumerate(WAYS)
    ],
    ids=str,
)
def test_a_key_gets_nowhere_by_interpolation(
    changes: dict[str, Any],
    way: str,
    mode: str,
    mark: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each in one way and mode, and those of Hydra's own keys in two that cover both; the others are slow tests."""
    folder = mark.parent
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("COPY_OF_IT", KEY)
    values = [f"++{key}={json.dumps(value) if isinstance(value, list) else value}" for key, value in changes.items()]
    if way == "experiment":
        (folder / "conf" / "experiment").mkdir(parents=True)
        tree: dict[str, Any] = {}
        for key, value in changes.items():
            put(tree, key, value)
        text = yaml.safe_dump(tree)
        (folder / "conf" / "experiment" / "theirs.yaml").write_text(f"# @package _global_\n{text}")
        values = ["--config-dir=conf", "experiment=theirs"]
    small = [each for each in SMALL if not each.startswith("logger")]
    arguments = [mode, *values[:1], *small, *values[1:], "rounds=1", "algorithm=fedavg", "server_data=none"]
    monkeypatch.setattr(sys, "argv", ["fedlab", *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train.main() in (1, 2)
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err and "Traceback" not in shown.err
    theirs = {folder / "conf" / "experiment" / "theirs.yaml"} if KEY in str(changes) else set()
    found = [path for path in folder.rglob("*") if path not in theirs]
    assert not [path for path in found if KEY in path.name or (path.is_file() and KEY in path.read_text())]


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key."""
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value


def test_keys_are_found_where_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not secrets.faults([("logger.name", KEY)]), "nothing is known"
    (tmp_path / "netrc").write_text(
        f"machine api.wandb.ai login user password {KEY}\nmachine x login a password bcdefghij"
    )
    (tmp_path / "netrc").chmod(0o600)
    assert len(secrets.faults([("a", f"x{KEY}"), ("b", 3), ("c", None), ("d", "bcdefghij")])) == 1
    (tmp_path / "netrc").write_text("machine")
    assert not secrets.faults([("a", KEY)])
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    cfg = composed("logger=wandb")
    cfg.logger.tags = ["x", KEY]
    with pytest.raises(UserError, match=r"^logger\.tags\.1 holds a W&B key") as caught:
        build(cfg)
    assert KEY not in str(caught.value)
    assert secrets.in_arguments(["algorithm=fedavg", "-m", "+x.y=1"]) == []
    monkeypatch.setenv("WANDB_API_KEY", "short")
    assert not secrets.faults([("a", "short and long")])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("HF_TOKEN", KEY),
        ("HUGGING_FACE_HUB_TOKEN", KEY),
        ("HF_TOKEN_PATH", "~/huggingface/token"),
        ("HF_HOME", "~/huggingface"),
        ("XDG_CACHE_HOME", "~"),
    ],
)
def test_a_token_of_hugging_face_is_found_too(
    place: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (*secrets.VARIABLES, "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface" / "token").write_text(f"{KEY}\n")
    assert not secrets.faults([("dataset.path", KEY)])
    monkeypatch.setenv(place, value)
    [line] = secrets.faults([("dataset.path", f"https://x:{KEY}@huggingface.co/x")])
    assert line.startswith("dataset.path holds a Hugging Face token, ") and KEY not in line
    assert secrets.redacted(f"x{KEY}y") == "x***y"


def test_what_a_run_notes_of_its_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedlab_runner.experiment import provenance

    monkeypatch.setenv("WANDB_API_KEY", KEY)
    provenance.record(tmp_path, "fedlab rounds=1", "x", 2, {}, torch.device("cpu"))
    text = (tmp_path / provenance.COMMANDS_FILE).read_text()
    assert KEY not in text and set(json.loads(text)) == {
        *("command", "cwd", "folder", "tracked_as", "commit", "own_commits", "threads", "versions", "machine", "code")
    }
    assert socket.gethostname() not in json.loads(text)["machine"].values()
