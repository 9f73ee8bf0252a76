"""Long runs, many jobs, many processes: nothing grows, nothing is lost, nothing is there twice."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Held, between, watch

pytestmark = pytest.mark.slow

TINY = (
    "algorithm=fedbuff",
    "server_data=none",
    "dataset=synthetic",
    "dataset.num_train=120",
    "dataset.num_test=30",
    "dataset.image_size=4",
    "partition=iid",
    "model=logistic",
    "num_clients=12",
    "participation.cohort_size=3",
    "delay.std=2",
    "local.epochs=1",
    "executor=loop",
    "device=cpu",
)
MEBIBYTE = 2**20
# A sweep in one process; drawing, which takes a hundred times as long as such a job, is tried by fewer jobs.
SWEEP = """
import sys
from fedlab_runner import runner, train
if sys.argv.pop(1) == "no pictures":
    for name in ("plot_partition", "plot_curves", "plot_staleness"):
        setattr(runner, name, lambda *_: False)
    runner.plot_diagnostics = lambda *_: []
sys.exit(train.main())
"""


def start(folder: Path, *command: str) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "PYTHONPATH": f"{Path(__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    with (folder / "output.txt").open("w") as output:
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
        )


def assert_no_growth(early: list[Held], late: list[Held], most: int) -> None:
    """`most` bytes more at the end; handles, threads and children not one more."""
    assert early and late
    print(f"early {early[-1]}, late {late[-1]}")
    assert statistics.median(each.rss for each in late) - statistics.median(each.rss for each in early) < most
    for name in ("handles", "threads", "children"):
        assert max(getattr(each, name) for each in late) <= max(getattr(each, name) for each in early), name


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("logger", ["none", "wandb"])
def test_ten_thousand_rounds(logger: str, tmp_path: Path) -> None:
    """What a round leaves in memory is its row of numbers, which the summary and the pictures are made from."""
    rounds = 10_000
    rules = (f"rounds={rounds}", "evaluation.every=10", "checkpoint.rounds=500", "checkpoint.seconds=null")
    process = start(
        tmp_path, "-m", "fedlab_runner.train", *TINY, *rules, f"logger={logger}", f"hydra.run.dir={tmp_path}/run"
    )
    seen = watch(process, lambda: lines(tmp_path / "run" / "metrics.jsonl"), 1.0)
    assert process.returncode == 0, (tmp_path / "output.txt").read_text()
    rows = [json.loads(line)["round"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(rounds + 1))
    assert_no_growth(between(seen, 1000, 2000), between(seen, 9000, rounds), 40 * MEBIBYTE)


@pytest.mark.parametrize(("jobs", "pictures"), [(1000, "no pictures"), (60, "pictures")])
def test_a_sweep_in_one_process(jobs: int, pictures: str, tmp_path: Path) -> None:
    process = start(tmp_path, "-c", SWEEP, pictures, "-m", *TINY, "rounds=1", "logger=none", f"seed=range({jobs})")
    folders = tmp_path / "outputs"
    seen = watch(process, lambda: len(list(folders.glob("fedbuff-*/summary.json"))), 1.0)
    assert process.returncode == 0, (tmp_path / "output.txt").read_text()[-3000:]
    assert_all_there(folders, jobs, rounds=1)
    assert_no_growth(between(seen, jobs // 10, jobs // 5), between(seen, jobs * 9 // 10, jobs), 60 * MEBIBYTE)


def test_parallel_jobs_in_one_output_folder(tmp_path: Path) -> None:
    jobs, workers = 200, int(os.environ.get("FEDLAB_TEST_WORKERS", "4"))
    launcher = ("hydra/launcher=joblib", f"hydra.launcher.n_jobs={workers}")
    process = start(tmp_path, "-m", "fedlab_runner.train", "-m", *launcher, *TINY, "rounds=3", f"seed=range({jobs})")
    seen = watch(process, lambda: len(list((tmp_path / "outputs").glob("fedbuff-*/summary.json"))), 1.0)
    assert process.returncode == 0, (tmp_path / "output.txt").read_text()[-3000:]
    print(f"most children at once: {max(each.children for each in seen)}")
    assert_all_there(tmp_path / "outputs", jobs, rounds=3)
    tracked = list((tmp_path / "outputs" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(tracked) == len({path.name for path in tracked}) == jobs
    left = [path for path in Path("/proc").glob("[0-9]*/environ") if tmp_path.name in _text(path)]
    assert not left, "processes are left behind"


def assert_all_there(folder: Path, jobs: int, rounds: int) -> None:
    """Each job's folder, its rows, its entry and the table over all of them: once."""
    runs = list(folder.glob("fedbuff-*/metrics.jsonl"))
    assert len(runs) == jobs
    for path in runs:
        assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == list(range(rounds + 1))
    [sweep] = (folder / "sweeps").iterdir()
    entries = [json.loads(path.read_text()) for path in (sweep / "jobs").glob("*.json")]
    assert sorted(entry["seed"] for entry in entries) == list(range(jobs))
    assert {entry["status"] for entry in entries} == {"finished"}
    assert f"| {jobs} |" in (sweep / "table.md").read_text()
    assert not list(folder.rglob("*.tmp"))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
