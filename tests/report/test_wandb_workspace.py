"""The W&B workspace: saved with one command on the stand-in server, and made of keys that runs really log."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from fedlab_runner.core.metric_names import DATA, MODELS, cell_of
from fedlab_runner.experiment.provenance import COMMANDS_FILE
from fedlab_runner.plots import diagnostics
from fedlab_runner.report import wandb_workspace
from fedlab_runner.sweep import states
from fedlab_runner.sweep.records import Job
from fedlab_runner.utils import checksummed_json
from tests.helpers.paths import ROOT
from tests.helpers.wandb_server import WandbServer


def command(folder: Path, url: str, *arguments: str, key: str = "0" * 40) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"WANDB_BASE_URL": url, "WANDB_API_KEY": key, "HOME": str(folder), "NO_PROXY": "127.0.0.1"}
    start = [sys.executable, "-m", "fedlab_runner.report.wandb_workspace", *arguments]
    return subprocess.run(start, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)


def sweep_of(outputs: Path, *names: str) -> Path:
    """The folder of a sweep in `outputs` whose runs W&B knows as `<name>-0a1b`, with a job that was refused."""
    sweep = outputs / "sweeps" / "algorithm_seed-1a2b3c4d"
    (sweep / "jobs").mkdir(parents=True)
    for name in (*names, "invalid-3"):
        (outputs / name).mkdir()
        job = Job([f"algorithm={name}"], 0, states.FINISHED, 0.5, f"outputs/{name}")
        (sweep / "jobs" / f"{name}.json").write_text(checksummed_json.text(asdict(job)))
    for name in names:
        start = json.dumps({"tracked_as": f"{name}-0a1b"}) + "\n"
        (outputs / name / COMMANDS_FILE).write_text(start)
    return sweep


def test_a_sweep_has_the_ids_that_its_runs_have_in_wandb(tmp_path: Path) -> None:
    """Outside of `outputs` these are not the names of the folders; a job that was refused has no run."""
    sweep = sweep_of(tmp_path, "fedavg-1", "feddle-2")
    assert wandb_workspace.runs_of(sweep) == ["fedavg-1-0a1b", "feddle-2-0a1b"]


def test_one_command_saves_the_workspace(tmp_path: Path) -> None:
    pytest.importorskip("wandb_workspaces")
    sweep = sweep_of(tmp_path, "fedavg-1", "feddle-2")
    with WandbServer() as server:
        ran = command(tmp_path, server.url, "--sweep", str(sweep))
        told = command(tmp_path, server.url, "--entity", "a-team", "--project", "mine")
        view, of_all = server.views
    assert told.returncode == 0 and (of_all["entityName"], of_all["projectName"]) == ("a-team", "mine")
    assert ran.returncode == 0, ran.stderr
    assert re.match(r"http.*/tester/fedlab_runner\?nw=\w+", ran.stdout)
    assert (view["entityName"], view["projectName"]) == ("tester", "fedlab_runner")
    assert view["displayName"] == "fedlab: algorithm_seed-1a2b3c4d"
    spec = json.loads(view["spec"])
    sections = spec["section"]["panelBankConfig"]["sections"]
    names = [section["name"] for section in sections]
    assert names == [name for name, *_ in wandb_workspace.LINES] + ["Partition, coefficients, classes"]
    lines = [panel["config"] for section in sections for panel in section["panels"] if "Line" in panel["viewType"]]
    assert {key for line in lines for key in line["metrics"]} == {
        key for *_, panels in wandb_workspace.LINES for _, keys in panels for key in keys
    }
    assert all(line["xAxis"] == "round" and line["groupAgg"] == "mean" for line in lines)
    assert all(line["groupArea"] == "stddev" for line in lines)
    (runs,) = spec["section"]["runSets"]
    assert all(name in json.dumps(runs["filters"]) for name in ("fedavg-1-0a1b", "feddle-2-0a1b"))
    assert {"section": "run", "name": "group"} in runs["grouping"], "seeds of a setting are one line"
    assert all(line["groupBy"] == "group" and line["limit"] >= 1000 for line in lines)


def test_without_a_server_or_the_extra_it_is_one_line(tmp_path: Path) -> None:
    ran = command(tmp_path, "http://127.0.0.1:9", "--entity", "tester")
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.splitlines()[-1].startswith(
        ("error: W&B did not save the workspace ([Errno 111] Connection refused)", "error: fedlab-dashboard ")
    )


def test_a_variable_that_wandb_cannot_use_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    wandb.teardown()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("WANDB_SILENT", "maybe")
    assert wandb_workspace.main([]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: WANDB_SILENT='maybe' in the environment cannot be used: ") and "login" not in told


def test_a_folder_that_is_no_sweep_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert wandb_workspace.main(["--sweep", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: --sweep must be the folder of a sweep")


def test_its_keys_are_those_that_runs_log() -> None:
    """docs/metrics.md is itself tested against runs."""
    documented = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.M))
    shown = {key for *_, panels in wandb_workspace.LINES for _, keys in panels for key in keys}
    assert {key for key in shown if cell_of(key) is None} <= documented
    assert set(diagnostics.PICTURES) <= set(wandb_workspace.PICTURES)
    cells = {f"{model}/{data}" for model in MODELS for data in DATA} - {"server/global"}  # which is test/accuracy
    assert cells <= shown
