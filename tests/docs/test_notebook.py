"""The notebook of first steps runs from its first cell to its last, and is committed with small outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedlab_runner import train
from fedlab_runner.report import cli
from tests.helpers.in_process import own_handlers
from tests.helpers.paths import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"
MAX_BYTES = 100_000
# What makes the cells quick, and changes nothing that they do.
QUICKER = {"rounds=20": "rounds=1", "seed=0,1,2": "seed=0"}
# A program of the cells in one namespace, as a notebook has it; an error names its cell.
PROGRAM = """
import json, sys
cells = json.load(open(sys.argv[1]))
space = {"__name__": "__main__"}
for number, source in enumerate(cells, 1):
    exec(compile(source, f"cell {number}", "exec"), space)
print("cells:", len(cells))
"""


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return content


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_it_was_executed_in_order_without_an_error(notebook: dict[str, Any]) -> None:
    assert notebook["nbformat"] == 4 and NOTEBOOK.stat().st_size < MAX_BYTES
    assert [cell["execution_count"] for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    outputs = [output for cell in code(notebook) for output in cell["outputs"]]
    assert outputs and all(output["output_type"] in ("stream", "execute_result", "display_data") for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.get("name") == "stderr"]


def test_nothing_in_it_is_of_the_machine_that_executed_it(notebook: dict[str, Any]) -> None:
    text = json.dumps([cell["outputs"] for cell in code(notebook)])
    assert "/tmp" not in text and "/home" not in text and "/root" not in text
    assert notebook["metadata"].keys() <= {"kernelspec", "language_info"}


def quick(notebook: dict[str, Any]) -> list[str]:
    """The code of the cells, with fewer rounds and seeds."""
    cells = ["".join(cell["source"]) for cell in code(notebook)]
    for old, new in QUICKER.items():
        assert any(old in cell for cell in cells), old
        cells = [cell.replace(old, new) for cell in cells]
    return cells


def test_its_cells_run(
    notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, and the commands that they start too: to start another one takes seconds."""

    start = subprocess.run

    def in_process(command: list[str], **how: Any) -> Any:
        if command[:2] != [sys.executable, "-m"]:  # git
            return start(command, **how)
        module, *arguments = command[2:]
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        capsys.readouterr()
        with own_handlers():
            assert {"fedlab_runner": train.main, "fedlab_runner.report.cli": cli.main}[module]() == 0
        return subprocess.CompletedProcess(command, 0, capsys.readouterr().out)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", in_process)
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(quick(notebook), 1):
        exec(compile(source, f"cell {number}", "exec"), space)
    shown = capsys.readouterr().out
    assert "outputs/report/index.html" in shown and "of 270 right" in shown
    assert (tmp_path / "accuracy.png").stat().st_size > 1000
    committed = json.dumps([cell["outputs"] for cell in code(notebook)])
    (table,) = tmp_path.glob("outputs/sweeps/*/table.md")
    for line in (str(space["result"].folder), *table.read_text().splitlines()[:1]):  # the same with one round
        assert line in committed, "jupyter nbconvert --to notebook --execute --inplace docs/notebooks/first_steps.ipynb"


@pytest.mark.slow
def test_its_cells_run_as_a_program(notebook: dict[str, Any], tmp_path: Path) -> None:
    """In a fresh process, as plain Python."""
    cells = quick(notebook)
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    command = [sys.executable, "-c", PROGRAM, "cells.json"]
    environment = os.environ | {"MPLBACKEND": "Agg"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(f"cells: {len(cells)}\n")
    assert "outputs/report/index.html" in ended.stdout and "| algorithm=scaffold | 1 |" in ended.stdout
    assert (tmp_path / "accuracy.png").stat().st_size > 1000
