"""Long runs, many jobs, many processes: nothing grows, nothing is lost, nothing is there twice."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.processes import Usage, between, watch

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
NO_PICTURES = """
from fedlab_runner.experiment import artifacts
for name in ("plot_partition", "plot_curves", "plot_staleness"):
    setattr(artifacts, name, lambda *_: False)
artifacts.plot_diagnostics = lambda *_: []
"""
# Many runs in one process: what Hydra does for each job of a sweep takes ten times as long as such a job.
RUNS = """
import sys
from pathlib import Path
from fedlab_runner import compose
from fedlab_runner.experiment.run import run_in
cfg = compose(*sys.argv[2:])
for seed in range(int(sys.argv[1])):
    cfg.seed = seed
    run_in(Path("outputs") / f"fedbuff-{seed}", cfg)
"""
SWEEP = "import sys\nfrom fedlab_runner import train\nsys.exit(train.main())"


def start(folder: Path, *command: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with (folder / "output.txt").open("w") as output:
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
        )


def assert_no_growth(early: list[Usage], late: list[Usage], most: int) -> None:
    """`most` bytes more at the end, by medians; and not one thread, child or handle more, by the least: a file that is
    being written is open in half of the looks.
    """
    assert early and late
    before, after = (Usage(*map(min, zip(*part, strict=True))) for part in (early, late))
    print(f"before: {before}, at the end: {after}")
    assert after.threads <= before.threads and after.children <= before.children and after.handles <= before.handles
    assert statistics.median(each.rss for each in late) - statistics.median(each.rss for each in early) < most


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


@pytest.mark.parametrize(("runs", "pictures"), [(1000, False), (100, True)])
def test_runs_in_one_process(runs: int, pictures: bool, tmp_path: Path) -> None:
    code = ("" if pictures else NO_PICTURES) + RUNS
    process = start(tmp_path, "-c", code, str(runs), *TINY, "rounds=1", "logger=none")
    seen = watch(process, lambda: len(list((tmp_path / "outputs").glob("fedbuff-*/summary.json"))), 0.5)
    assert process.returncode == 0, (tmp_path / "output.txt").read_text()[-3000:]
    assert_rows(tmp_path / "outputs", runs, rounds=1)
    assert_no_growth(between(seen, runs // 10, runs // 5), between(seen, runs * 9 // 10, runs), 60 * MEBIBYTE)


@pytest.mark.parametrize(("jobs", "logger"), [(100, "none"), (100, "wandb"), (1000, "none")])
def test_a_sweep_in_one_process(jobs: int, logger: str, tmp_path: Path) -> None:
    arguments = ("-m", *TINY, "rounds=1", f"logger={logger}", f"seed=range({jobs})")
    process = start(tmp_path, "-c", NO_PICTURES + SWEEP, *arguments)
    folders = tmp_path / "outputs"
    seen = watch(process, lambda: len(list(folders.glob("fedbuff-*/summary.json"))), 0.5)
    assert process.returncode == 0, (tmp_path / "output.txt").read_text()[-3000:]
    assert_all_there(folders, jobs, rounds=1)
    if logger == "wandb":
        assert_tracked(folders, jobs)
    assert_no_growth(between(seen, jobs // 10, jobs // 5), between(seen, jobs * 9 // 10, jobs), 60 * MEBIBYTE)


@pytest.mark.parametrize("jobs", [40, 200])
def test_parallel_jobs_in_one_output_folder(jobs: int, tmp_path: Path) -> None:
    """On FEDLAB_TEST_WORKERS processes; each job draws its pictures and has a W&B of its own, offline."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs the extra joblib")
    workers = int(os.environ.get("FEDLAB_TEST_WORKERS", "4"))
    launcher = ("hydra/launcher=joblib", f"hydra.launcher.n_jobs={workers}")
    words = *TINY, "rounds=3", "logger.pictures=true", f"seed=range({jobs})"
    process = start(tmp_path, "-m", "fedlab_runner.train", "-m", *launcher, *words)
    seen = watch(process, lambda: len(list((tmp_path / "outputs").glob("fedbuff-*/summary.json"))), 1.0)
    assert process.returncode == 0, (tmp_path / "output.txt").read_text()[-3000:]
    print(f"most children at once: {max(each.children for each in seen)}")
    assert_all_there(tmp_path / "outputs", jobs, rounds=3)
    assert_tracked(tmp_path / "outputs", jobs)
    left = [path for path in Path("/proc").glob("[0-9]*/environ") if tmp_path.name in _text(path)]
    assert not left, "processes are left behind"


def assert_rows(folder: Path, jobs: int, rounds: int) -> None:
    """Each job's folder with all of its rows, once."""
    runs = list(folder.glob("fedbuff-*/metrics.jsonl"))
    assert len(runs) == jobs
    for path in runs:
        assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == list(range(rounds + 1))
    assert not list(folder.rglob("*.tmp"))


def assert_all_there(folder: Path, jobs: int, rounds: int) -> None:
    """The same, with each job's entry and the table over all of them."""
    assert_rows(folder, jobs, rounds)
    [sweep] = (folder / "sweeps").iterdir()
    entries = [json.loads(path.read_text()) for path in (sweep / "jobs").glob("*.json")]
    assert sorted(entry["seed"] for entry in entries) == list(range(jobs))
    assert {entry["status"] for entry in entries} == {"finished"}
    assert f"| {jobs} |" in (sweep / "table.md").read_text()


def assert_tracked(folder: Path, jobs: int) -> None:
    """Each job's W&B file, once."""
    tracked = list((folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(tracked) == len({path.name for path in tracked}) == jobs


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
