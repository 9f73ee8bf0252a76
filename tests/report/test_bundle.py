"""What a bundle holds, that it is the same each time, and that its description is an RO-Crate."""

import hashlib
import json
import os
import shutil
import zipfile
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from fedlab_runner.report import bundle, cli, folders, ro_crate
from fedlab_runner.sweep import states
from fedlab_runner.utils.errors import UserError
from fedlab_runner.verify import unpack
from tests.helpers.bundles import contents
from tests.helpers.report_files import curve, write_failed_job, write_note, write_run

START = {
    "command": "fedlab algorithm=fedavg",
    "cwd": "/somewhere/of/mine",
    "folder": "/somewhere/of/mine/outputs/run",
    "commit": "a" * 40,
    "own_commits": {"/somewhere/of/mine/code": "b" * 40},
    "threads": 1,
    "versions": {"python": "3.11.7", "fedlab-runner": "0.0.9", "torch": "2.11.0"},
    "machine": {"processor": "Z80"},
    "code": {},
}


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A finished run, and one that failed in a sweep."""
    place = tmp_path / "outputs"
    run = write_run(place, "algorithm=fedavg", "rounds=2", rows=curve(0.1, 0.5, 0.6, **{"comm/upload_mb": 1.0}))
    (run / "commands.jsonl").write_text(json.dumps(START) + "\n")
    (run / "train.log").write_text("a line")
    (run / ".hydra").mkdir(exist_ok=True)
    (run / ".hydra" / "config.yaml").write_text("as in config.yaml")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "2.pt").write_bytes(b"not for a bundle")
    failed = write_run(place, "algorithm=fedprox", "rounds=2", rows=curve(0.1))
    write_failed_job(place, failed, "the loss is not finite")
    write_note(failed, "the loss is not finite")
    return place


def test_a_bundle_has_what_the_tables_rest_on(outputs: Path, tmp_path: Path) -> None:
    written = bundle.write(tmp_path / "b.zip", [outputs])
    files = contents(tmp_path / "b.zip")
    assert written.runs == 2 and written.manifest == hashlib.sha256(files[bundle.MANIFEST]).hexdigest()
    (run,) = [path.name for path in outputs.glob("fedavg-*")]
    for name in ("config.yaml", "metrics.jsonl"):
        assert files[f"outputs/{run}/{name}"] == (outputs / run / name).read_bytes()
    assert not [name for name in files if any(part in name for part in ("train.log", "checkpoints", ".hydra/config"))]
    assert not [name for name in files if name.endswith("/")]
    assert len([name for name in files if name.startswith("outputs/sweeps/")]) == 1
    assert f",{states.FAILED}" in files["tables/runs.csv"].decode().replace('"', "")
    listed = dict(reversed(line.split("  ")) for line in files[bundle.MANIFEST].decode().splitlines())
    assert listed.keys() == files.keys() - {bundle.MANIFEST, bundle.CRATE}
    assert all(hashlib.sha256(files[name]).hexdigest() == digest for name, digest in listed.items())
    about = json.loads(files[bundle.ABOUT])
    assert (
        about["format"] == bundle.FORMAT
        and run in about["runs"]
        and about["made"].keys() == {"fedlab_runner", "commit"}
    )
    assert b"\ntorch==" in files[bundle.REQUIREMENTS]


def test_runs_that_no_check_would_unpack_are_refused(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a hundred runs of 50,000 rounds: their zip file is a tenth as large. The limit counts all files."""
    path = tmp_path / "b.zip"
    bundle.write(path, [outputs])
    size = sum(map(len, contents(path).values()))
    monkeypatch.setattr(bundle, "MAX_BYTES", size)
    bundle.write(path, [outputs])
    unpack.unpack(path, tmp_path / "unpacked")
    monkeypatch.setattr(bundle, "MAX_BYTES", size - 1)
    with pytest.raises(UserError, match="larger than a bundle's files are"):
        unpack.unpack(path, tmp_path / "again")
    path.unlink()
    with pytest.raises(UserError, match=r"would hold .* GiB, and fedlab-verify unpacks .* give fewer runs"):
        bundle.write(path, [outputs])
    assert not path.exists()


def test_jobs_without_a_run_are_told(outputs: Path, tmp_path: Path) -> None:
    (sweep,) = (outputs / "sweeps").iterdir()
    (sweep / "grid.json").write_text(json.dumps([["seed=0"], ["seed=1"]]))
    bundle.write(tmp_path / "b.zip", [outputs])
    assert b"\nJobs of the sweeps without a run: 2 not begun.\n" in contents(tmp_path / "b.zip")[bundle.README]


def test_a_bundle_of_an_experiment_has_its_runs_alone_and_tells_the_options(outputs: Path, tmp_path: Path) -> None:
    run = write_run(outputs, "experiment=late_clients", "rounds=2", rows=curve(0.1, 0.5, 0.6))
    (sweep,) = (outputs / "sweeps").iterdir()
    (sweep / "grid.json").write_text(json.dumps([["seed=0"], ["seed=1"]]))
    assert bundle.write(tmp_path / "b.zip", [outputs], "late_clients", [0.55]).runs == 1
    files = contents(tmp_path / "b.zip")
    about = json.loads(files[bundle.ABOUT])
    assert [about[key] for key in ("runs", "experiment", "targets")] == [[run.name], "late_clients", [0.55]]
    assert {name.split("/")[1] for name in files if name.startswith("outputs/")} == {run.name}
    assert b"Jobs of the sweeps" not in files[bundle.README], "they may be of another experiment"


def test_the_same_runs_make_the_same_bytes(outputs: Path, tmp_path: Path) -> None:
    first, second = (bundle.write(tmp_path / name, [outputs]) for name in ("a.zip", "b.zip"))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert first.manifest == second.manifest
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        entries = {(each.date_time, each.external_attr >> 16) for each in archive.infolist()}
    assert entries == {((1980, 1, 1, 0, 0, 0), 0o644)}, "whenever it is made, and all may read it"
    shutil.copytree(outputs, tmp_path / "moved")
    assert bundle.write(tmp_path / "c.zip", [tmp_path / "moved"]).manifest == first.manifest, "from another folder"


def test_the_tables_are_those_of_the_report(outputs: Path, tmp_path: Path) -> None:
    page, _ = cli.write([outputs], tmp_path / "report", targets=[0.55])
    bundle.write(tmp_path / "b.zip", [outputs], targets=[0.55])
    files = contents(tmp_path / "b.zip")
    tables = {path.name: path.read_bytes() for path in page.parent.glob("*.csv")}
    assert tables and {name.removeprefix("tables/"): files[name] for name in files if name[:7] == "tables/"} == tables


def test_a_command_reads_each_run_once(outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the copies in the bundle, which its tables are made of."""
    read: list[Path] = []
    real = folders.read_run
    monkeypatch.setattr(folders, "read_run", lambda folder, *more: [read.append(folder), real(folder, *more)][1])
    assert cli.main([str(outputs), "--out", str(tmp_path / "out"), "--bundle", str(tmp_path / "b.zip")]) == 0
    assert sorted(each for each in read if outputs in each.parents) == sorted(outputs.glob("fed*")) and len(read) == 4


def test_folders_of_this_machine_are_left_out(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/somewhere/of/mine")
    (run,) = outputs.glob("fedavg-*")
    told = {"hydra": {"runtime": {"choices": {"algorithm": "fedavg"}, "cwd": START["cwd"]}, "overrides": {"task": []}}}
    (run / bundle.CHOICES).write_text(json.dumps(told))
    assert cli.main([str(outputs), "--out", str(tmp_path / "out"), "--bundle", str(tmp_path / "b.zip")]) == 0
    files = contents(tmp_path / "b.zip")
    assert not [name for name, content in files.items() if b"/somewhere/of/mine" in content]
    (start,) = [json.loads(files[name]) for name in files if name.endswith("commands.jsonl")]
    assert json.loads(files[f"outputs/{run.name}/{bundle.CHOICES}"])["hydra"]["runtime"] == {
        "choices": {"algorithm": "fedavg"}
    }
    assert start["own_commits"] == {"code": "b" * 40} and start["command"] == START["command"]
    shown = capsys.readouterr().out
    assert "b.zip: 2 runs, manifest " in shown and "note:" not in shown
    (config,) = outputs.glob("fedavg-*/config.yaml")
    config.write_text(config.read_text() + "x: /somewhere/of/mine/data\n")
    assert bundle.write(tmp_path / "c.zip", [outputs]).personal == 1
    assert "note: 1 file of the bundle hold" in bundle.words(bundle.write(tmp_path / "c.zip", [outputs]))
    monkeypatch.setenv("HOME", "/")
    assert bundle.write(tmp_path / "c.zip", [outputs]).personal == 0, "each path begins with it"


def test_what_cannot_be_bundled_is_one_line(outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    assert cli.main([str(outputs), "--out", str(tmp_path / "out"), "--bundle", str(tmp_path / "folder")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    next(outputs.glob("fedavg-*")).rename(outputs / "a:b")
    with pytest.raises(UserError, match=r"'a:b' is no name for a run in a bundle: rename .*/a:b \(no \\, no colon,"):
        bundle.write(tmp_path / "b.zip", [outputs])
    (outputs / "a:b").rename(outputs / "ab")
    os.mkfifo(outputs / "ab" / "partition.csv")
    with pytest.raises(UserError, match=r"partition\.csv is not a plain file: it cannot be bundled"):
        bundle.write(tmp_path / "b.zip", [outputs])
    assert not (tmp_path / "b.zip").exists()


def test_the_description_is_an_ro_crate(outputs: Path, tmp_path: Path) -> None:
    """What RO-Crate 1.2 says that there must be; its own validator has passed such a file too."""
    (outputs / next(outputs.glob("fedavg-*")).name).rename(outputs / "mine #1 ü")
    bundle.write(tmp_path / "b.zip", [outputs])
    files = contents(tmp_path / "b.zip")
    crate = json.loads(files[bundle.CRATE])
    assert crate["@context"] == "https://w3id.org/ro/crate/1.2/context"
    entities: dict[str, dict[str, Any]] = {each["@id"]: each for each in crate["@graph"]}
    assert len(entities) == len(crate["@graph"]), "each entity is described once"
    descriptor, root = entities["ro-crate-metadata.json"], entities["./"]
    assert descriptor["about"] == {"@id": "./"} and descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.2"}
    assert root["@type"] == "Dataset" and {"name", "description", "datePublished", "license", "hasPart"} <= root.keys()
    described = {unquote(key) for key, each in entities.items() if each["@type"] == "File"}
    assert described == files.keys() - {bundle.CRATE}
    assert all(
        entities[key]["contentSize"] == str(len(files[unquote(key)])) for key in entities if unquote(key) in described
    )
    linked, reached = {"./"}, set[str]()
    while linked - reached:
        reached |= linked
        linked = {link for each in linked for link in links(entities.get(each, {}))}
    assert reached - entities.keys() == set(), "each link leads to an entity"
    assert {key for key, each in entities.items() if each["@type"] == "File"} <= reached
    (action,) = [each for each in entities.values() if each.get("description") == START["command"]]
    assert action["@type"] == "CreateAction" and action["object"] == {"@id": "outputs/mine%20%231%20%C3%BC/config.yaml"}
    programs = {entities[each["@id"]]["name"]: entities[each["@id"]] for each in action["instrument"]}
    assert programs["python"]["url"] == "https://www.python.org/"
    assert programs["fedlab-runner"]["version"] == "0.0.9", "the one that computed the run"
    assert programs["torch"]["version"] == "2.11.0" and programs["torch"]["url"].startswith("https://pypi.org/")


def test_a_run_is_an_action_from_its_config_that_a_summary_completes() -> None:
    sizes = dict.fromkeys(["tables/runs.csv", "outputs/a/.hydra/hydra.yaml"], 1)
    sizes |= dict.fromkeys([f"outputs/{run}/{name}" for run in "ab" for name in ("config.yaml", "metrics.jsonl")], 1)
    sizes["outputs/a/summary.json"] = 1
    crate = ro_crate.metadata(sizes, bundle.RUN_FILES, {"a": {}, "b": {}}, None, date(2026, 1, 2))
    entities = {each["@id"]: each for each in crate["@graph"]}
    ended, begun = entities["#run-a"], entities["#run-b"]
    assert [each["actionStatus"].rpartition("/")[2] for each in (ended, begun)] == [
        "CompletedActionStatus",
        "ActiveActionStatus",
    ]
    assert begun["object"] == {"@id": "outputs/b/config.yaml"} and begun["result"] == {"@id": "outputs/b/metrics.jsonl"}
    assert {"@id": "tables/runs.csv"} in entities["./"]["hasPart"] and len(entities["./"]["hasPart"]) == 3
    choices = entities["outputs/a/.hydra/hydra.yaml"]
    assert choices["encodingFormat"] == "application/yaml"
    assert choices["description"] == bundle.RUN_FILES[bundle.CHOICES]


def links(entity: dict[str, Any]) -> list[str]:
    values = [each for value in entity.values() for each in (value if isinstance(value, list) else [value])]
    return [each["@id"] for each in values if isinstance(each, dict)]
