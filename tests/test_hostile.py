"""Files, archives, configs and keys that mean harm: nothing in them is executed, and no key is written down."""

import ast
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composed import SMALL, composed

import fedlab_runner
from fedlab_runner import archives, keys, train
from fedlab_runner.checkpoint import CheckpointStore
from fedlab_runner.config import build
from fedlab_runner.datasets.femnist import NPZ
from fedlab_runner.delays.from_file import FromFile
from fedlab_runner.errors import UserError
from fedlab_runner.files import write_atomically
from fedlab_runner.models._torch import read_weights
from fedlab_runner.runner import prepare

SOURCES = sorted(Path(fedlab_runner.__path__[0]).rglob("*.py"))
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


# Both ends of a socket pair are processes of one run, and what a worker sends back is what Ray itself unpickles.
ALLOWED = {"cluster": {"pickle.loads"}, "ray_driver": {"pickle.loads"}}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_code_reads_what_could_run_code(path: Path) -> None:
    for name, given in _calls(path):
        assert name not in FORBIDDEN - ALLOWED.get(path.stem, set()) and not name.endswith(
            (".extractall", ".extract")
        ), name
        assert name != "torch.load" or given.get("weights_only") is True
        assert name not in ("np.load", "numpy.load") or given.get("allow_pickle") is False
        assert given.get("shell") is not True, name


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
    from fedlab_runner import checkpoint

    harm = Harm(tmp_path / "harm")
    path = tmp_path / "checkpoints" / "round_000001.pt"
    write_atomically(path, lambda file: checkpoint._write(file, 1, {}, {"state": harm}))
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        CheckpointStore(tmp_path, 2).load({})
    assert not (tmp_path / "harm").exists()


# Archives


def tar(path: Path, *members: tuple[tarfile.TarInfo | str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if info.isreg():
                info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_only_what_is_asked_for_is_taken(tmp_path: Path) -> None:
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    escapes = [("../../escaped", b"x"), (str(tmp_path / "absolute"), b"x"), ("a/../../../up", b"x"), ("more", b"x")]
    links = [(link("a/way", str(tmp_path)), b""), (link("hard", "../../x", tarfile.LNKTYPE), b"")]
    archive = tar(
        tmp_path / "a.tar.gz", *escapes, *links, ("a/way/through", b"x"), ("set/one", b"1"), ("set/two", b"2")
    )
    archives.take(archive, ["set/one", "set/two"], inside)
    assert {path.name: path.read_bytes() for path in inside.iterdir()} == {"one": b"1", "two": b"2"}
    assert {path.name for path in tmp_path.iterdir()} == {"deep", "a.tar.gz"}


def test_a_name_from_outside_cannot_leave_the_folder_either(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    archives.take(tar(tmp_path / "a.tar", ("../../etc/one", b"1")), ["../../etc/one"], inside)
    assert [path.name for path in inside.iterdir()] == ["one"]


@pytest.mark.parametrize(
    "info",
    [
        link("set/one", "/etc/passwd"),
        link("set/one", "../../../etc/passwd", tarfile.LNKTYPE),
        link("set/one", "", tarfile.FIFOTYPE),
        link("set/one", "", tarfile.CHRTYPE),
        link("set/one", "", tarfile.DIRTYPE),
    ],
    ids=["symlink", "hardlink", "fifo", "device", "folder"],
)
def test_what_is_no_file_is_refused(info: tarfile.TarInfo, tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError, match="something else than a file under set/one"):
        archives.take(tar(tmp_path / "a.tar.gz", (info, b"")), ["set/one"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    for name in ("set/one", "other"):
        with pytest.raises(tarfile.TarError, match="unpacks to more than 1000 bytes"):
            archives.take(tar(tmp_path / "a.tar.gz", (name, bytes(1001)), ("set/one", b"1")), ["set/one"], tmp_path)
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    with pytest.raises(tarfile.TarError, match="or 3 files"):
        archives.take(tar(tmp_path / "a.tar.gz", *[(f"{i}", b"") for i in range(4)]), ["set/one"], tmp_path)


def test_a_lacking_or_damaged_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError, match="has no set/two"):
        archives.take(tar(tmp_path / "a.tar.gz", ("set/one", b"1")), ["set/one", "set/two"], tmp_path)
    (tmp_path / "b.tar.gz").write_bytes(b"no archive")
    with pytest.raises(tarfile.TarError):
        archives.take(tmp_path / "b.tar.gz", ["set/one"], tmp_path)


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
    cfg = composed("dataset=femnist", f"dataset.root={tmp_path}", "partition=by_user", "model=logistic", small=False)
    with pytest.raises(UserError, match="is damaged"):
        build(cfg).dataset.load(0)
    (tmp_path / "delays.npy").write_bytes(npy_header((2**46,)))
    with pytest.raises(UserError, match=r"cannot be read"):
        FromFile(draw="client", path=str(tmp_path / "delays.npy")).sample(np.random.default_rng(0), np.arange(3))


def test_json_nested_without_end_is_refused(tmp_path: Path) -> None:
    nested = "[" * 100_000
    for part in ("train", "test"):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        (tmp_path / "femnist" / part / "a.json").write_text(nested)
    cfg = composed("dataset=femnist", f"dataset.root={tmp_path}", "partition=by_user", "model=logistic", small=False)
    with pytest.raises(UserError, match="is not a json file of LEAF"):
        build(cfg).dataset.load(0)
    (tmp_path / "delays.json").write_text(nested)
    with pytest.raises(UserError, match="nested too deeply"):
        FromFile(draw="client", path=str(tmp_path / "delays.json")).sample(np.random.default_rng(0), np.arange(3))


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


@pytest.mark.parametrize(
    "value",
    ["__import__('os').mkdir('harm')", "$(mkdir harm)", "`mkdir harm`", "!!python/object/apply:os.mkdir [harm]"],
)
def test_values_stay_text(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = composed()
    cfg.logger.name = value
    assert build(cfg).logger.name == value and not list(tmp_path.iterdir())


def test_sizes_that_nothing_can_hold_are_refused() -> None:
    cfg = composed("model.image_size=1e30")
    with pytest.raises(UserError, match=r"^model\.image_size must be a whole number or null, got 1e\+30"):
        build(cfg)
    cfg = composed("model.image_size=10000000000")
    with pytest.raises(UserError, match=r"^model\.image_size must be at most 4096"):
        prepare(build(cfg))


def test_no_resolver_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("${eval:1+1}", "${python:1}", "${oc.exec:ls}"):
        cfg = composed()
        cfg.logger.name = text
        with pytest.raises(UserError, match=r"logger\.name"):
            build(cfg)


# Keys


def fedlab(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A run in a process of its own, on its way to an unreachable server; what it said."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    ours |= {"HOME": str(folder), "WANDB_BASE_URL": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    ours |= {f"WANDB_{name}_DIR": str(folder / name.lower()) for name in ("CACHE", "DATA", "CONFIG")}
    ours["PYTHONPATH"] = f"{Path(__file__).parents[1]}{os.pathsep}{ours.get('PYTHONPATH', '')}"
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
    process = fedlab(tmp_path, **environment)
    assert process.returncode == 0, process.stderr
    assert "goes on with logger.mode=offline" in process.stdout + process.stderr
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
    monkeypatch.setattr(sys, "argv", ["fedlab", *SMALL, argument])
    assert train.main() == 2
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert line.startswith("error: ") and "holds a W&B key" in line and KEY not in shown.out + shown.err
    assert not list(tmp_path.iterdir())


def test_keys_are_found_where_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not keys.faults([("logger.name", KEY)]), "nothing is known"
    (tmp_path / "netrc").write_text(
        f"machine api.wandb.ai login user password {KEY}\nmachine x login a password bcdefghij"
    )
    (tmp_path / "netrc").chmod(0o600)
    assert len(keys.faults([("a", f"x{KEY}"), ("b", 3), ("c", None), ("d", "bcdefghij")])) == 1
    (tmp_path / "netrc").write_text("machine")
    assert not keys.faults([("a", KEY)])
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    cfg = composed()
    cfg.logger.tags = ["x", KEY]
    with pytest.raises(UserError, match=r"^logger\.tags\.1 holds a W&B key") as caught:
        build(cfg)
    assert KEY not in str(caught.value)
    assert keys.in_arguments(["algorithm=fedavg", "-m", "+x.y=1"]) == []
    monkeypatch.setenv("WANDB_API_KEY", "short")
    assert not keys.faults([("a", "short and long")])


def test_what_a_run_notes_of_its_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedlab_runner import provenance

    monkeypatch.setenv("WANDB_API_KEY", KEY)
    provenance.record(tmp_path, "fedlab rounds=1", 2)
    text = (tmp_path / provenance.FILE).read_text()
    assert KEY not in text and set(json.loads(text)) == {"command", "commit", "threads", "versions"}
