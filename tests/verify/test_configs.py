"""Configs of strangers: nothing of a bundle is executed, written outside, sent or downloaded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from fedlab_runner.config.build import check, conf_dir
from fedlab_runner.config.run_id import VOLATILE, without_volatile
from fedlab_runner.utils.errors import UserError
from fedlab_runner.verify import cli, configs, verification
from fedlab_runner.verify.configs import Settings
from tests.helpers.bundles import contents, write
from tests.helpers.composed import composed
from tests.robustness.test_report_hostile import HARM, spoilt

RESNET = "fedlab_runner.models.resnet18_torchvision.TorchvisionResNet18"
NOTED = {"threads": 2, "machine": {"processor": "Z80"}}


def values(*overrides: str) -> dict[str, Any]:
    found: Any = check(composed("rounds=3", *overrides)).values
    return found


def here(config: dict[str, Any], *overrides: str, noted: dict[str, Any] = NOTED) -> dict[str, Any]:
    """The config with which a run of this config is computed again."""
    found: Any = OmegaConf.to_container(Settings(overrides).config(config, 2, noted), resolve=True)
    return found


def test_only_what_decides_the_numbers_comes_from_the_bundle() -> None:
    theirs = values("algorithm=fedprox", "local.lr=0.3", "dataset=cifar10", "server_data=tiny_imagenet")
    evil = json.loads(json.dumps(theirs))
    evil["logger"] = {
        "_target_": "fedlab_runner.tracking.logger.WandbLogger",
        "mode": "online",
        "entity": "them",
        "dir": "/x",
    }
    evil["checkpoint"] = {"_target_": "os.system", "command": "true"}
    evil["pruning"] = {"_target_": "builtins.exec"}
    evil["dataset"] |= {"root": "/etc", "download": True}
    evil["server_data"] |= {"root": "/etc", "cache": "/etc/cron.d"}
    ours = here(evil)
    assert check(OmegaConf.create(ours)).run_id == check(OmegaConf.create(theirs)).run_id
    assert not {"mode", "entity", "dir"} & ours["logger"].keys() and ours["rounds"] == 2
    assert ours["checkpoint"] == theirs["checkpoint"] and ours["pruning"] == theirs["pruning"]
    assert ours["dataset"]["root"] == theirs["dataset"]["root"] != "/etc" and ours["dataset"]["download"] is False
    assert ours["server_data"]["root"] == theirs["server_data"]["root"] and ours["server_data"]["cache"] is None
    assert (ours["threads"], ours["device"]) == (2, "cpu"), "those of the run"
    assert here(theirs, noted={"machine": {"gpu": "an old one"}})["device"] == "auto", "a GPU if there is one"


def test_each_key_that_is_not_part_of_the_id_is_looked_at() -> None:
    """A new one fails at import until it has its place."""
    assert {*configs._HERE, *configs._COMPUTED, *configs._DATA, *configs._KEPT} == {*VOLATILE}


def test_who_verifies_decides_where_and_how() -> None:
    ours = here(
        values("dataset=cifar10"),
        *("dataset.root=/mine", "dataset.download=true", "threads=1", "device=cpu", "executor=vectorized"),
        "executor.chunk_size=3",
    )
    assert ours["dataset"]["root"] == "/mine" and ours["dataset"]["download"] is True and ours["threads"] == 1
    assert ours["executor"] == {
        "_target_": f"{configs.EXECUTORS}.vectorized.Vectorized",
        "chunk_size": 3,
        "compile": False,
    }
    assert Settings(["dataset.download=true"]).downloads and not Settings(["dataset.root=true"]).downloads


ELSEWHERE = {
    "dataset.test_path": ("dataset=csv", "dataset.path=/theirs", "dataset.target=ill"),
    "delay.path": ("delay=from_file", "delay.path=/theirs"),
    "topology.path": ("topology=edge_list", "topology.path=/theirs"),
    "model.weights": ("model=resnet18_torchvision",),
    "model.models.0.weights": ("model=mix", f"model.models=[{{_target_: {RESNET}, weights: /theirs}}]"),
}


def test_files_of_any_component_may_lie_elsewhere() -> None:
    """Each key holds for the runs that have it."""
    settings = Settings([f"{key}=/mine" for key in ELSEWHERE])
    for key, choices in ELSEWHERE.items():
        expected: Any = OmegaConf.create(values(*choices))
        OmegaConf.update(expected, key, "/mine")
        moved: Any = OmegaConf.to_container(settings.config(values(*choices), 2, NOTED))
        assert without_volatile(moved) == without_volatile(OmegaConf.to_container(expected)), key


def test_each_field_that_names_files_may_be_set() -> None:
    """In the source, whatever the component: the argument of a function that opens it."""
    choices = [path.read_text() for path in conf_dir().glob("*/*.yaml") if path.parent.name != "logger"]
    folders = {name for text in choices for name in re.findall(r"^_target_: fedlab_runner\.(\w+)", text, re.MULTILINE)}
    package = Path(configs.__file__).parents[1]
    sources = [path.read_text() for folder in folders for path in (package / folder).glob("*.py")]
    opened = r"(?:Path|folder|load_weights|decode_cached)\([^)]*?self\.([a-z]\w*)"
    found = {name for text in sources for name in re.findall(opened, text)}
    assert {"root", "path", "test_path", "weights"} <= found
    assert [name for name in found if not configs._is_place(f"dataset.{name}")] == []


@pytest.mark.parametrize(
    "key", ["dataset.target", "dataset.name", "delay.draw", "model.name", "logger.root", "datset.root", "root"]
)
def test_a_key_of_no_file_cannot_be_set(key: str) -> None:
    with pytest.raises(UserError, match=f"^{key} cannot be set: only keys of .* and places of files"):
        Settings([f"{key}=1"])


@pytest.mark.parametrize("threads", [0, -1, 10**6, "2", True, None, 1.5])
def test_a_number_of_threads_that_is_none_is_ignored(threads: Any) -> None:
    assert here(values(), noted={"threads": threads})["threads"] is None


def test_the_folder_of_images_of_ones_own_is_kept_unless_it_is_given(tmp_path: Path) -> None:
    config = values("dataset=image_folder", "dataset.root=/theirs", "dataset.cache=/theirs/cache")
    assert here(config)["dataset"] | {"root": "/theirs", "cache": None, "name": "/theirs"} == here(config)["dataset"]
    servers = values("server_data=image_folder", "server_data.root=/theirs")
    assert here(servers)["server_data"]["root"] == "/theirs", "although imagenet_mh has a folder for the same class"
    moved = here(config, "dataset.root=/mine")
    assert (moved["dataset"]["root"], moved["dataset"]["name"]) == ("/mine", "/theirs")
    assert check(OmegaConf.create(moved)).run_id == check(OmegaConf.create(config)).run_id


LOOP = {"_target_": f"{configs.EXECUTORS}.loop.Loop", "compile": False}
AUTO = {"_target_": f"{configs.EXECUTORS}.auto.Auto", "seconds": 30.0, "workers": None, "compile": True}


def test_graphs_of_a_gpu_are_chunks_of_the_same_clients_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {"_target_": f"{configs.EXECUTORS}.cuda_graph.CudaGraph", "chunk_size": 7, "compile": True}
    for gpu, kind in ((True, "cuda_graph.CudaGraph"), (False, "vectorized.Vectorized")):
        monkeypatch.setattr(configs, "_has_gpu", lambda gpu=gpu: gpu)
        assert configs.executor(recorded) == recorded | {"_target_": f"{configs.EXECUTORS}.{kind}", "compile": gpu}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (LOOP, LOOP),
        (AUTO | {"workers": 10**6}, AUTO),
        (
            {"_target_": f"{configs.EXECUTORS}.processes.Processes", "workers": 10**6, "inner": LOOP},
            {"_target_": f"{configs.EXECUTORS}.processes.Processes", "workers": None, "inner": LOOP},
        ),
        (
            {"_target_": f"{configs.EXECUTORS}.ray.Ray", "address": "evil:6379", "inner": LOOP},
            {"_target_": f"{configs.EXECUTORS}.processes.Processes", "workers": None, "inner": LOOP},
        ),
        (
            {"_target_": f"{configs.EXECUTORS}.ray.Ray", "address": "evil:6379", "inner": {"_target_": "os.system"}},
            None,
        ),
        ({"_target_": "os.system", "command": "true"}, None),
        ({"_target_": 3}, None),
        ("loop", None),
        (None, None),
    ],
)
def test_executors_of_a_bundle(node: Any, expected: Any) -> None:
    assert configs.executor(node) == expected
    if expected is None:
        assert here(values() | {"executor": node})["executor"]["_target_"] == f"{configs.EXECUTORS}.auto.Auto"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: ${oc.env:HOME}", "a holds an interpolation"),
        (b"'${oc.env:HOME}': 1", "holds an interpolation"),
        (b"a: [{b: 'x${c}'}]", "a.0.b holds an interpolation"),
        (b"a: &x [1, *x]", "has an alias within the value that it repeats"),
        (b"a: !!python/object/apply:os.system [true]", "has a tag before a value"),
        (b"- " * 99 + b"x", "is nested deeper than 50 levels"),
        (b"hydra: 5", "holds settings of Hydra"),
        (b"[1]", "holds no config"),
        (b"", "holds no config"),
        (b"\x80\x80", "is not YAML"),
        (b"x: " + b"y" * 2**20, "is larger than 1 MiB"),
    ],
)
def test_files_that_are_no_resolved_config(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        configs.read(tmp_path)
    assert "\n" not in str(caught.value)


HOSTILE: tuple[dict[str, Any], ...] = (
    {"algorithm": {"_target_": "os.system", "command": "touch {mark}"}},
    {"algorithm": {"_target_": "subprocess.Popen", "args": ["touch", "{mark}"]}},
    {"algorithm": {"_target_": "antigravity.X"}},
    {"dataset": {"_target_": "stranger_module_of_the_bundle.Data"}},
    {"model": {"_target_": "fedlab_runner.models.timm.Timm", "kwargs": {"_target_": "os.system"}}},
    {"model": {"_target_": "torch.hub.load"}},
    {"seed": {"_target_": "builtins.eval"}},
    {"num_clients": 10**30},
    {"no": "such key"},
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
def test_no_class_of_a_bundle_is_built(
    hostile: dict[str, Any],
    bundled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even one that lies in the folder where the command is typed."""
    (tmp_path / "stranger_module_of_the_bundle.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    files = contents(bundled)
    for name in [each for each in files if each.endswith("config.yaml")]:
        text = json.dumps(yaml.safe_load(files[name]) | hostile).replace("{mark}", str(tmp_path / "mark"))
        files[name] = text.encode()
    code = cli.main([str(write(tmp_path / "b.zip", files)), "--cells", "1"])
    shown = capsys.readouterr()
    assert code == 1 and shown.err == ""
    assert "NOT COMPUTED" in shown.out and "cannot be read here: " in shown.out
    assert re.search(r"\n[12] of 4 checks do not hold; the configs could not be checked here\n$", shown.out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.zip", "stranger_module_of_the_bundle.py"]


def test_texts_of_a_stranger_in_each_place(bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run for each text, and each is told to be computed."""
    whole = contents(bundled)
    files = {name: content for name, content in whole.items() if not name.startswith("outputs/")}
    (first, *_) = json.loads(whole["bundle.json"])["runs"]
    for number, harm in enumerate(HARM):
        plain = harm.replace("\ud800", "")
        for name in (each for each in whole if each.startswith(f"outputs/{first}/")):
            content = whole[name]
            if name.endswith("config.yaml"):
                content = json.dumps(spoilt(yaml.safe_load(content), plain)).encode()
            if name.endswith(("commands.jsonl", "summary.json")):
                content = json.dumps(spoilt(json.loads(content), harm)).encode() + b"\n"
            files[name.replace(first, f"run-{number}")] = plain.encode() * 3 if name.endswith(".csv") else content
    code = cli.main([str(write(tmp_path / "b.zip", files)), "--cells", "99"])
    shown = capsys.readouterr()
    assert code == 1 and all(each.isprintable() or each == "\n" for each in shown.out + shown.err)
    assert shown.out.count("NOT COMPUTED") == len(HARM)


def test_libraries_may_not_download_unless_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in verification.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    with verification._offline(Settings([])):
        assert all(os.environ[name] == "1" for name in verification.OFFLINE)
    with verification._offline(Settings(["dataset.download=true"])):
        assert not any(name in os.environ for name in verification.OFFLINE)
