"""The W&B workspace: saved with one command on the stand-in server, and made of keys that runs really log."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedlab_runner.core.metric_names import cell_of
from fedlab_runner.plots import diagnostics
from fedlab_runner.tracking import wandb_workspace
from tests.helpers.paths import ROOT
from tests.helpers.wandb_server import WandbServer


def command(folder: Path, url: str, *arguments: str, key: str = "0" * 40) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"WANDB_BASE_URL": url, "WANDB_API_KEY": key, "HOME": str(folder), "NO_PROXY": "127.0.0.1"}
    start = [sys.executable, "-m", "fedlab_runner.tracking.wandb_workspace", *arguments]
    return subprocess.run(start, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_one_command_saves_the_workspace(tmp_path: Path) -> None:
    pytest.importorskip("wandb_workspaces")
    with WandbServer() as server:
        ran = command(tmp_path, server.url, "--group", "algorithm_seed-1a2b3c4d")
        (view,) = server.views
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
    assert "algorithm_seed-1a2b3c4d" in json.dumps(spec["section"]["runSets"][0]["filters"])


def test_without_a_server_or_the_extra_it_is_one_line(tmp_path: Path) -> None:
    ran = command(tmp_path, "http://127.0.0.1:9", "--entity", "tester")
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.splitlines()[-1].startswith(
        ("error: W&B did not save the workspace (", "error: fedlab-dashboard ")
    )


def test_its_keys_are_those_that_runs_log() -> None:
    """docs/metrics.md is itself tested against runs."""
    documented = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.M))
    shown = {key for *_, panels in wandb_workspace.LINES for _, keys in panels for key in keys}
    assert {key for key in shown if cell_of(key) is None} <= documented
    assert set(diagnostics.PICTURES) <= set(wandb_workspace.PICTURES)
