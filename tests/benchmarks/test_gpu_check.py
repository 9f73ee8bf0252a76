"""`make gpu-check`, its parts on a CPU at a tiny size, and what it makes of parts that fail, crash and hang.

Those parts have processes of their own, which take seconds to begin: their tests are slow.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_check import child, goals, run
from benchmarks.gpu_check.finding import Part, Setting, farthest
from benchmarks.gpu_check.parts import PARTS
from benchmarks.gpu_check.runs import algorithms
from benchmarks.gpu_check.table import table
from tests.helpers.paths import ROOT

ON_CPU = ("--device", "cpu", "--tiny")
TINY = Setting(torch.device("cpu"), tiny=True)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of parts find `bad_parts`."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), os.environ.get("PYTHONPATH", "")])
    )


def check(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON."""
    code = run.main([*ON_CPU, "--out", str(folder), *words])
    return code, json.loads((folder / "gpu-check.json").read_text())


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    folder = tmp_path_factory.mktemp("faulty")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), os.environ.get("PYTHONPATH", "")])
        )
        code, results = check(folder, "--parts", "tests.helpers.bad_parts", "--only", "^(?!endless|good)")
    return code, results, (folder / "gpu-check.md").read_text()


def findings(results: dict[str, Any], part: str) -> list[tuple[str, str, Any]]:
    return [(each["case"], each["words"], each["holds"]) for each in results["parts"][part]["findings"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("raises", "ValueError: the kernel | is wrong"),
        ("dies", "ended by SIGSEGV: the last words"),
        ("hangs", "took longer than 0.5 s and was ended"),
    ],
)
def test_a_case_that_goes_wrong_is_told_and_the_next_is_carried_out(
    part: str, what: str, faulty: tuple[int, dict[str, Any], str]
) -> None:
    _, results, text = faulty
    *before, bad, good, timed = findings(results, part)
    assert bad == ("bad", what, False)
    assert good == ("next", "good", True) and timed == ("next", "3 ms", None)
    assert before == ([("bad", "came first", True)] if part == "raises" else [])
    assert results["parts"][part]["state"] == "done"
    assert what.replace("|", "\\|") in text and "**no**" in text


@pytest.mark.slow
def test_a_part_that_cannot_begin_and_what_does_not_fit(faulty: tuple[int, dict[str, Any], str]) -> None:
    code, results, text = faulty
    assert code == 1
    [(_, words, holds)] = findings(results, "cannot begin")
    assert holds is False and words == "ended with exit code 1: ImportError: no such kernel"
    assert results["parts"]["cannot begin"]["state"].startswith("not done")
    assert findings(results, "large")[0] == ("model", "does not fit into the GPU's memory", None)
    assert text.splitlines()[-1].endswith("; not done: cannot begin")


def test_what_does_not_come_to_its_turn_is_said_and_is_no_failure(tmp_path: Path) -> None:
    code, results = check(tmp_path, "--parts", "tests.helpers.bad_parts", "--only", "good|endless", "--minutes", "0.3")
    assert code == 0 and results["parts"]["good"]["state"] == "skipped: the 0.3 minutes were over"
    assert "skipped: the 0.3 minutes were over" in (tmp_path / "gpu-check.md").read_text()


@pytest.mark.slow
def test_a_part_that_the_time_ends_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WORTH_BEGINNING", 0.0)
    code, results = check(tmp_path, "--parts", "tests.helpers.bad_parts", "--only", "endless", "--minutes", "0.05")
    assert code == 0 and [holds for *_, holds in findings(results, "endless")] == [None]
    assert results["parts"]["endless"]["state"] == "not done: the 0.05 minutes were over"


@pytest.mark.slow
def test_a_killed_check_leaves_what_was_found_and_no_process(tmp_path: Path) -> None:
    words = [*ON_CPU, "--out", str(tmp_path), "--parts", "tests.helpers.bad_parts", "--only", "good|endless"]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.gpu_check", *words], cwd=ROOT)
    path, until = tmp_path / "gpu-check.json", time.monotonic() + 120
    while not (path.exists() and json.loads(path.read_text())["parts"]["endless"]["state"] == "running"):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    results = json.loads(path.read_text())
    assert findings(results, "good") == [("all", "good", True), ("all", "3 ms", None)]
    assert "| good | all | timed | 3 ms |  |" in (tmp_path / "gpu-check.md").read_text()
    while any(_lives(pid) for pid in children):
        assert time.monotonic() < until
        time.sleep(0.1)


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_parts_that_time_something_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the others, which run side by side."""
    running, seen = set[str](), list[set[str]]()
    together = threading.Barrier(2, timeout=60)

    def carry_out(check: run.Check, part: Part) -> None:
        running.add(part.name)
        if not part.alone:
            together.wait()
        seen.append(set(running))
        if not part.alone:
            together.wait()
        running.discard(part.name)

    monkeypatch.setattr(run.Check, "carry_out", carry_out)
    monkeypatch.setattr(run, "usable_cores", lambda: 2)
    parts = [Part(name, lambda setting: iter(()), 1, 1, alone=name > "b") for name in "cabd"]
    run.Check(tmp_path, {"parts": {}}, argparse.Namespace(minutes=1)).carry_out_all(parts)
    assert seen == [{"a", "b"}, {"a", "b"}, {"c"}, {"d"}]


def test_a_selection_and_a_folder_of_ones_own(tmp_path: Path) -> None:
    code, results = check(tmp_path / "new", "--parts", "tests.helpers.bad_parts", "--only", "raises: next")
    assert code == 0 and findings(results, "raises") == [("next", "good", True), ("next", "3 ms", None)]
    assert results["machine"]["torch"] == torch.__version__ and "raises: next" in results["command"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: what it says without one cannot be seen")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "error: make gpu-check needs a CUDA GPU, and torch finds none\n"
    assert not any(tmp_path.iterdir())


def test_how_far_metrics_are_apart() -> None:
    one = {"round": 1, "loss": 200.0, "accuracy": 0.5, "lost": None}
    assert farthest(one, dict(one))[0] == 0.0
    assert farthest(one, one | {"loss": 202.0}) == (pytest.approx(2 / 202), "loss")
    assert farthest(one, one | {"accuracy": 0.25}) == (0.25, "accuracy")
    assert farthest(one, one | {"lost": 0.0}) == (math.inf, "lost")
    assert farthest(one, {"round": 1})[0] == math.inf
    assert farthest({"loss": math.nan}, {"loss": 1.0})[0] == math.inf
    assert farthest({"loss": math.nan}, {"loss": math.nan})[0] == 0.0


def test_the_table() -> None:
    finding = {"case": "W2 cnn", "name": "plain", "words": "3 ms | x 1.00", "holds": None, "numbers": {}}
    failed = {"case": "W1", "name": "", "words": "ended by SIGSEGV", "holds": False, "numbers": {"log": ["a", " b"]}}
    machine = {"gpu": "G", "driver": "5", "cuda": "13", "torch": "2", "cores": 4, "processor": "P"}
    parts = {
        "speed": {"state": "done", "findings": [finding, failed]},
        "late": {"state": "skipped: the 10 minutes were over", "findings": []},
    }
    results = {"machine": machine, "commit": "abc", "command": "do it", "date": "now", "parts": parts}
    assert table(results).splitlines() == [
        "`do it`, now, commit abc",
        "G, driver 5, CUDA 13, torch 2, 4 cores (P)",
        "",
        "| part | case | | found | holds |",
        "|---|---|---|---|---|",
        "| speed | W2 cnn | plain | 3 ms \\| x 1.00 |  |",
        "| speed | W1 |  | ended by SIGSEGV<br>`a`<br>`b` | **no** |",
        "| late | | | skipped: the 10 minutes were over | |",
        "",
        "| row | goal | found | reached |",
        "|---|---|---|---|",
        *goals.rows(results),
        "",
        "0 hold, 1 do not, 1 claim nothing; not done: late",
    ]


def test_the_goals() -> None:
    """Ratios of the least times, in each precision that was measured."""
    times = {
        "resnet18": {"plain": 4.0, "plain, lean": 2.0, "loop": 3.0, "graph": 2.1},
        "feddle's search": {"plain": 9.0, "ours": 3.0, "ours, fine-tuning": 2.0},
        "W2 mlp": {"plain": 8.0, "plain, vmap": 1.0, "graph": 0.5},
        "evaluation": {"plain": 1.0},
    }
    findings = [
        {"case": case, "name": name, "numbers": {"median_seconds": seconds}}
        for case, each in times.items()
        for name, seconds in each.items()
    ]
    findings.append({"case": "W1 cnn", "name": "plain", "numbers": {}})
    lines = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[2:]
        for line in goals.rows({"parts": {"bf16": {"findings": findings}}})
    }
    assert lines["resnet18"] == ["bf16: 0.95", "yes |"] and lines["W2 mlp"] == ["bf16: 16.00", "yes |"]
    assert lines["feddle's search"] == ["bf16: 0.67", "**no** |"]
    assert lines["evaluation"] == lines["W1 cnn"] == ["not measured", "|"]
    cases = {name for part in PARTS if part.name == "float32" for name, _ in part.cases(TINY)}
    assert lines.keys() <= cases


def test_the_parts_have_all_algorithms_and_each_case_a_name_of_its_own() -> None:
    cases = {part.name: [name for name, _ in part.cases(TINY)] for part in PARTS}
    assert all(len(names) == len(set(names)) > 0 for names in cases.values())
    everyone = list(algorithms())
    assert cases["algorithms"] == cases["resume"] == everyone == cases["memory"][-len(everyone) :]


def _all_hold(folder: Path, only: str) -> dict[str, Any]:
    code, results = check(folder, "--only", only, "--minutes", "60")
    assert code == 0 and all(part["state"] == "done" and part["findings"] for part in results["parts"].values())
    return results


def test_a_part_on_a_cpu(tmp_path: Path) -> None:
    """From the command to the table."""
    results = _all_hold(tmp_path, "resume: scaffold")
    assert findings(results, "resume") == [("scaffold", "to the bit", True)]


@pytest.fixture
def _settings_of_torch() -> Iterator[None]:
    """Are left as they were."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])
    torch.backends.cudnn.allow_tf32 = before[2]


@pytest.mark.usefixtures("_settings_of_torch")
@pytest.mark.parametrize(
    ("part", "case", "least"),
    [
        ("executors", "cohort", 2),
        ("algorithms", "dec_fedavg", 2),
        pytest.param("memory", "fedexp", 1, marks=pytest.mark.slow),
        pytest.param("bf16", "W2 logistic", 5, marks=pytest.mark.slow),
    ],
)
def test_the_code_of_other_parts_on_a_cpu(part: str, case: str, least: int) -> None:
    said: list[dict[str, Any]] = []
    cases = dict(next(each for each in PARTS if each.name == part).cases(TINY))
    child.carry_out(case, cases[case], said.append, TINY)
    assert len(said) >= least and not any(each["holds"] is False for each in said)
    assert any(each["holds"] for each in said) == (part in ("executors", "algorithms"))
    assert all(each["numbers"] for each in said) or part == "memory"


@pytest.mark.slow
@pytest.mark.parametrize("part", [part.name for part in PARTS if "compiled" not in part.name])
def test_all_parts_on_a_cpu(part: str, tmp_path: Path) -> None:
    _all_hold(tmp_path, f"^{part}: ")
