"""Sweeps: every job is tried and written down, the table is right at every moment, and a second call continues."""

import csv
import gc
import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedlab_runner import train
from fedlab_runner.config import build
from fedlab_runner.executors import threads
from fedlab_runner.executors._run_notes import note
from fedlab_runner.experiment import run
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.experiment.provenance import COMMANDS_FILE
from fedlab_runner.sweep import ahead, callback, plots, ranking, records, states
from fedlab_runner.sweep.records import Job, Row
from fedlab_runner.sweep.table import cells, csv_text, markdown, refresh, show
from fedlab_runner.tracking.metric_direction import check_direction, direction_of
from fedlab_runner.utils import checksummed_json, streams, system, untrusted
from fedlab_runner.utils.errors import Diverged, Pruned, RunFailed, UserError
from fedlab_runner.utils.files import write_text_atomically
from tests.helpers.crash import TINY
from tests.helpers.in_process import own_handlers

SMALL = ["model=logistic", "num_clients=4", "participation.cohort_size=2", "logger=none", "rounds=1", "device=cpu"]
Sweep = Callable[..., tuple[int, str, str]]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Sweep]:
    """A sweep in this process with a function in place of a run: the exit code, stdout and stderr."""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "plot_sweep", lambda _: [])

    def start(run: Callable[[DictConfig], float], *arguments: str, multirun: bool = True) -> tuple[int, str, str]:
        monkeypatch.setattr("fedlab_runner.experiment.run.run", run)
        monkeypatch.setattr(sys, "argv", ["fedlab", *["-m"] * multirun, *arguments])
        code = train.main()
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    with own_handlers():
        yield start


def raised(error: Exception) -> float:
    raise error


def score(cfg: DictConfig) -> float:
    """Different for all jobs of the sweep below."""
    return (
        {"Feddle": 0.4, "FedAvg": 0.5, "FedBuff": 0.6}[cfg.algorithm._target_.rpartition(".")[2]]
        + cfg.delay.std / 1e3
        + cfg.seed / 10
    )


def only_folder() -> Path:
    (folder,) = Path("outputs/sweeps").iterdir()
    return folder


def table() -> dict[str, dict[str, str]]:
    with open(only_folder() / "table.csv", encoding="utf-8") as file:
        return {row["setting"]: row for row in csv.DictReader(file)}


GRID = ("algorithm=fedavg,fedbuff", "delay.std=5,20", "seed=0,1")


def test_the_table_has_a_row_a_setting_and_statistics_over_seeds(launch: Sweep) -> None:
    code, out, err = launch(score, *GRID, "rounds=3")
    assert (code, err) == (0, "")
    rows = table()
    assert list(rows) == [
        f"algorithm={algorithm} delay.std={std} rounds=3" for algorithm in ("fedavg", "fedbuff") for std in (5, 20)
    ]
    row = rows["algorithm=fedbuff delay.std=20 rounds=3"]
    assert (row["seeds"], row["failed"]) == ("2", "0")
    assert float(row["mean"]) == pytest.approx(0.67)
    assert float(row["std"]) == pytest.approx(statistics.stdev([0.62, 0.72]))
    markdown = (only_folder() / "table.md").read_text().splitlines()
    assert markdown[0] == "| setting | seeds | mean | std | not counted |"
    assert markdown[5] == "| algorithm=fedbuff delay.std=20 | 2 | 0.67 | 0.07071 |  |"  # what all share is left out
    assert str(only_folder() / "table.md") in out and "algorithm=fedbuff delay.std=20" in out
    assert (only_folder() / "command.txt").read_text() == f"fedlab -m {' '.join(GRID)} rounds=3\n"
    assert len(list(Path("outputs").glob("fed*-*"))) == 8


def test_people_read_percent_and_whole_overrides_in_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "plot_sweep", lambda _: [])
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "jobs").mkdir()
    for cohort in (10, 30):
        overrides = ["algorithm=fedavg", "partition.alpha=0.1", f"participation.cohort_size={cohort}", "seed=0"]
        job = Job(overrides, 0, "finished", 0.9123, "outputs/x", summary={"metric": "test/accuracy"})
        write_text_atomically(tmp_path / "jobs" / f"{cohort}.json", checksummed_json.text(asdict(job)))
    failed = Job(
        ["algorithm=fedavg", "delay.std=5"], 0, "failed", None, "outputs/y", error="cohort_size is too large " * 5
    )
    write_text_atomically(tmp_path / "jobs" / "0.json", checksummed_json.text(asdict(failed)))
    show(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    drawn = [line for line in lines if line[:1] in "┏┃┡│└"]
    assert max(map(len, drawn)) <= 80 and len({*map(len, drawn)}) == 1 and "…" not in "".join(drawn)
    assert sum(line.startswith("├") for line in lines) == 2, "a rule between settings of several lines"
    assert f"failed: {failed.error}" in lines, "not in a narrow column"
    assert any("participation.cohort_size=30" in line for line in drawn) and any("91.23 %" in line for line in drawn)
    assert "| mean test/accuracy |" in markdown(records.read(tmp_path))


@pytest.mark.parametrize(("state", "heading"), [("finished", ""), ("failed", "counted")])
def test_a_long_override_leaves_room_for_the_other_columns(
    state: str, heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a job that does not count there is no column of these."""
    monkeypatch.setattr(plots, "plot_sweep", lambda _: [])
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "jobs").mkdir()
    long = "experiment=hyfem/fig4_cifar10_centralised"
    for number, (override, has) in enumerate([("experiment=hyfem/fig4_cifar10", "finished"), (long, state)]):
        job = Job([override], 0, has, 0.5, "outputs/x", summary={"metric": "test/accuracy"}, error="too large")
        write_text_atomically(tmp_path / "jobs" / f"{number}.json", checksummed_json.text(asdict(job)))
    show(tmp_path)
    table = [line for line in capsys.readouterr().out.splitlines() if line[:1] in "┏┃┡│└"]
    words = " ".join(line.strip("┃").split("┃")[-1].strip() for line in table if line[0] == "┃").split()
    assert words == (["not", heading] if heading else ["std"]) and max(map(len, table)) <= 80


def test_a_search_has_its_best_setting_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person reads the best ones on the terminal, with numbers of four digits; the files have all, as they were."""
    monkeypatch.setattr(plots, "plot_sweep", lambda _: [])
    (tmp_path / "jobs").mkdir()
    for i in range(60):
        pruned = i % 3 == 0
        state, value = ("pruned", None) if pruned else ("finished", i / 100)
        record = Job([f"local.lr=0.1234{i:02}78901234", "seed=0"], 0, state, value, "x", {"metric": "test/accuracy"})
        write_text_atomically(tmp_path / "jobs" / f"{i}.json", checksummed_json.text(asdict(record)))
    refresh(tmp_path)
    found = (tmp_path / "table.md").read_text().splitlines()[2:]
    ranked = [i for i in range(59, 0, -1) if i % 3]
    assert [line.split()[1] for line in found[:40]] == [f"local.lr=0.1234{i:02}78901234" for i in ranked]
    assert len(found) == 60 and all("1 pruned" in line for line in found[40:])
    show(tmp_path)
    out = capsys.readouterr().out
    assert "the best 40 of 60 settings" in out and "local.lr=0.12345978901234" in out and "pruned" not in out, (
        "four digits do not tell apart"
    )
    assert ranking.short(["a=0.12345678 b=1", "a=0.22345678e-05 b=0.5"]) == ["a=0.1235 b=1", "a=2.235e-06 b=0.5"]
    write_text_atomically(tmp_path / records.GRID, json.dumps([["seed=0"]]))
    refresh(tmp_path)
    assert (tmp_path / "table.md").read_text().splitlines()[-1].startswith("| local.lr=0.12345978901234 |")


def test_the_best_trial_is_written_into_the_folder_of_its_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra's Optuna sweeper writes it beside all runs, where another search would replace it."""
    monkeypatch.setenv(callback.FOLDER, str(tmp_path / "sweeps" / "a"))
    (tmp_path / "sweeps" / "a").mkdir(parents=True)
    launcher = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
    config = OmegaConf.create({"hydra": {"launcher": launcher, "sweep": {"dir": str(tmp_path)}}})
    callback.SweepCallback().on_multirun_end(config)
    (tmp_path / "optimization_results.yaml").write_text("best_value: 1\n")
    callback.SweepCallback().on_multirun_end(config)
    assert (tmp_path / "sweeps" / "a" / "optimization_results.yaml").read_text() == "best_value: 1\n"
    assert not (tmp_path / "optimization_results.yaml").exists()


def test_a_longer_run_that_is_there_has_its_unit_and_counts_as_before(launch: Sweep) -> None:
    def run(cfg: DictConfig) -> float:
        folder = Path(HydraConfig.get().runtime.output_dir)
        summary = {"metric": "test/accuracy", "rule": "last", "rounds": 9, "best": 0.75}
        (folder / "summary.json").write_text(json.dumps(summary))
        rows = [{"round": round, "test/accuracy": 0.9 if round == 3 else round / 12} for round in range(10)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return 0.5

    assert launch(run, "seed=0,1", "evaluation.every=2", "rounds=9")[0] == 0
    code, out, _ = launch(run, "seed=0,1", "evaluation.every=2", "rounds=5")
    assert code == 0 and "job 1/2 finished before: 50.00 %, outputs/" in out
    (row,) = records.read(max(Path("outputs/sweeps").iterdir(), key=os.path.getmtime))
    assert row.numbers("best") == [5 / 12] * 2, "of the due ones of the first five rounds"
    assert row.numbers("rounds") == [5, 5]


def test_a_damaged_record_of_a_job_does_not_count_and_is_written_anew(
    launch: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A digit of its number, or a letter of a name in it: never another mean in silence."""
    warnings: list[str] = []
    monkeypatch.setattr(records._log, "warning", lambda text, *words: warnings.append(text % words))
    assert launch(score, *GRID[1:])[0] == 0
    whole = table()
    path = min((only_folder() / "jobs").iterdir())
    content = path.read_text()
    for old, new in (('"objective": 0.', '"objective": 1.'), ('"seed"', '"sead"'), ("{", ""), ("sha256", "sha257")):
        path.write_text(content.replace(old, new, 1))
        assert path.read_text() != content
        warnings.clear()
        records._warn_once.cache_clear()
        refresh(only_folder())
        assert sorted(row["seeds"] for row in table().values()) == ["1", "2"]
        assert warnings == [f"{path} is damaged and does not count: the command of the sweep writes it again"]
    assert launch(score, *GRID[1:])[0] == 0
    changing = ("seconds", "sha256")  # of a job that ran again
    before, after = (
        {k: v for k, v in json.loads(text).items() if k not in changing} for text in (content, path.read_text())
    )
    assert table() == whole and before == after
    bare = {key: value for key, value in json.loads(content).items() if key not in ("format", "sha256")}
    path.write_text(json.dumps(bare, indent=1))
    refresh(only_folder())
    assert table() != whole, "a record without its checksum"


def test_a_sweep_whose_folder_cannot_be_made_ends_before_its_first_job(launch: Sweep) -> None:
    Path("outputs").mkdir()
    Path("outputs/sweeps").touch()
    began = []
    code, out, err = launch(lambda cfg: began.append(cfg) or 0.0, "seed=0,1")
    assert (code, out, began) == (2, "", [])
    line = r"error: .*/outputs/sweeps/\S+: no folder can .*\(Not a directory\): .*in a sweep hydra\.sweep\.dir; .*\)\n"
    assert re.fullmatch(line, err)


def test_a_sweep_whose_folder_is_lost_at_its_end_says_so(launch: Sweep) -> None:
    def job(_: DictConfig) -> float:
        Path("outputs/optimization_results.yaml").touch()  # as Hydra's Optuna sweeper writes
        (only_folder() / "optimization_results.yaml").mkdir(exist_ok=True)
        return 0.0

    code, _, err = launch(job, "seed=0")
    assert code == 1 and re.fullmatch(r"error: .*optimization_results\.yaml: Is a directory: .*\n", err)


def test_a_grid_knows_its_jobs_before_they_run(launch: Sweep) -> None:
    def to_come() -> list[list[str]]:
        return [job.overrides for row in records.read(only_folder()) for job in row.of(states.NOT_BEGUN)]

    seen = []
    launch(lambda cfg: seen.append(to_come()) or 0.0, *GRID[1:], "rounds=3")
    jobs = [[f"delay.std={std}", f"seed={seed}", "rounds=3"] for std in (5, 20) for seed in (0, 1)]
    assert seen == [jobs[i + 1 :] for i in range(4)] and to_come() == []


@pytest.mark.filterwarnings("ignore")  # of Hydra's plugin, which is old
def test_a_search_knows_how_many_jobs_are_to_come(launch: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers that it draws have four digits on the terminal."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra optuna")
    now = itertools.count(step=30.0)
    monkeypatch.setattr(callback, "time", SimpleNamespace(monotonic=lambda: next(now)))
    out = launch(lambda cfg: 0.5, "hparams_search=optuna", "hydra.sweeper.n_trials=3")[1]
    begun = re.findall(r"job (\d/3.*): local\.lr=(\S+)", out)
    assert [words for words, _ in begun] == ["1/3", "2/3, about 60 s left", "3/3, about 30 s left"]
    assert all(len(number.replace("0.", "").lstrip("0")) <= 4 for _, number in begun), begun


@pytest.mark.filterwarnings("ignore")  # of Hydra's plugin, which is old
def test_a_search_names_the_trials_that_its_study_has_already(launch: Sweep) -> None:
    """Optuna adds the new ones, and may take an old one for the best."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra optuna")
    study = ("hydra.sweeper.storage=sqlite:///study.db", "hydra.sweeper.study_name=a")
    told = [launch(lambda cfg: 0.5, "hparams_search=optuna", "hydra.sweeper.n_trials=2", *study)[1] for _ in range(2)]
    line = "warning: the study a in hydra.sweeper.storage has 2 trials already, to which this search adds its own"
    assert [line in out for out in told] == [False, True]
    code, _, err = launch(lambda cfg: 0.5, "hparams_search=optuna", "hydra.sweeper.storage=sqlite:///no/study.db")
    assert code == 2 and err.startswith("error: hydra.sweeper.storage cannot be used: ") and err.count("\n") == 1


def test_jobs_know_their_sweep_by_its_name(launch: Sweep) -> None:
    seen = set()
    launch(lambda cfg: seen.add(os.environ.get("FEDLAB_SWEEP")) or 0.0, *GRID[2:])
    assert seen == {only_folder().name}
    assert "FEDLAB_SWEEP" not in os.environ and "FEDLAB_SWEEP_FOLDER" not in os.environ


@pytest.mark.parametrize(
    ("launcher", "share"),
    [
        ({"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}, 8),
        ({"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": 3}, 2),
        ({"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": 20}, 1),
        ({"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": -1}, 1),
        ({"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": -5}, 2),
        ({"_target_": "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"}, 1),
        ({"_target_": "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher"}, 1),
        ({"_target_": "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"}, 8),
    ],
)
def test_jobs_side_by_side_share_the_cores(
    launcher: dict[str, Any], share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "machine_cores", lambda: 8)
    monkeypatch.setenv(system.SHARED_BY, str(system.jobs_at_once(launcher)))
    assert system.usable_cores() == share


def test_a_job_knows_its_share_of_the_cores(launch: Sweep) -> None:
    seen = []
    _, out, _ = launch(lambda cfg: seen.append(os.environ[system.SHARED_BY]) or 0.0, "seed=0")
    assert " 1 job, results in " in out
    assert seen == ["1"] and system.SHARED_BY not in os.environ


@pytest.mark.parametrize(("own", "expected"), [(None, 2), ("3", 3)])
def test_the_threads_of_a_job_are_a_users_and_not_its_launchers(
    own: str | None, expected: int, launch: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """joblib gives its workers a number of threads where the user's environment has none."""
    monkeypatch.setattr(threads.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(threads, "usable_cores", lambda: 7)
    monkeypatch.delenv(system.THREADS)
    if own is not None:
        monkeypatch.setenv(system.THREADS, own)
    note(Path("noted"), threads=2)

    def job(_: DictConfig) -> float:
        os.environ.setdefault(system.THREADS, "1")  # as joblib does
        return float(threads.set_threads(None, Path("noted")))

    _, out, _ = launch(job, "seed=0")
    assert json.loads(next(only_folder().glob("jobs/*.json")).read_text())["objective"] == expected
    told = "the run has 3 threads (OMP_NUM_THREADS) in the place of 2 as before: the last digits may differ"
    assert (told in out) == (own is not None)


def test_nothing_is_kept_of_a_job_that_has_ended(launch: Sweep) -> None:
    """Neither of the two configs that Hydra has of it: those of a thousand jobs are 0.2 GB."""
    kept = []

    def run(cfg: DictConfig) -> float:
        kept.append(sum(type(o) is JobReturn and o.hydra_cfg is not None for o in gc.get_objects()))
        return 0.0

    launch(run, "seed=0,1,2")
    assert len(kept) == 3 and set(kept) == {kept[0]}


def test_a_failing_job_does_not_end_the_sweep_and_is_told_at_once(launch: Sweep) -> None:
    ran = []

    def run(cfg: DictConfig) -> float:
        ran.append(cfg.seed)
        if cfg.seed == 1:
            raise Diverged("diverged in round 3")
        if cfg.seed == 2:
            raise RuntimeError("a bug")
        return 0.25

    code, out, err = launch(run, "seed=0,1,2,3")
    assert code == 1
    assert ran == [0, 1, 2, 3]
    folders = {job.seed: job.folder for row in records.read(only_folder()) for job in row.jobs}
    told = (
        f"job 2/4 failed, {folders[1]}: diverged in round 3",
        ": seed=2",
        "RuntimeError: a bug",
        "job 4/4 finished: 25.00 % in less than 1 s, ",
    )
    places = [out.index(each) for each in told]
    assert places == sorted(places)
    assert err == "error: 2 of 4 jobs failed\n", "Hydra does not name the job's overrides once more"
    (row,) = table().values()
    assert (row["setting"], row["seeds"], row["failed"], row["mean"], row["std"]) == ("", "2", "2", "0.25", "0.0")
    assert "| (defaults) | 2 | 0.25 | 0 | 2 failed (diverged in round 3) |" in (only_folder() / "table.md").read_text()


@pytest.mark.filterwarnings("ignore")  # of Hydra's plugin, which is old
@pytest.mark.parametrize("end", [lambda: math.nan, lambda: raised(Pruned(1, math.nan, ""))], ids=["end", "pruned"])
def test_a_search_goes_on_after_an_objective_that_is_not_a_number(end: Callable[[], float], launch: Sweep) -> None:
    """And so does the same command."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra optuna")
    ran: list[float] = []

    def run(cfg: DictConfig) -> float:
        ran.append(cfg.local.lr)
        return end() if len(ran) % 3 == 1 else 0.5

    for count in (1, 2):
        code, _, err = launch(run, "hparams_search=optuna", "hydra.sweeper.n_trials=3")
        assert (code, len(ran)) == (0, 3 * count), err
    found = [job.status for row in records.read(only_folder()) for job in row.jobs]
    assert sorted(found) in (["failed", "finished", "finished"], ["finished", "finished", "pruned"])


def test_a_grid_has_an_objective_that_is_not_a_number(launch: Sweep) -> None:
    def run(cfg: DictConfig) -> float:
        (Path(HydraConfig.get().runtime.output_dir) / "summary.json").write_text('{"rounds": 3}')
        return 0.5 if cfg.seed else math.nan

    assert launch(run, "seed=0,1", "rounds=3")[0] == 0
    (row,) = table().values()
    assert (row["seeds"], row["not finite"], row["mean"]) == ("1", "1", "0.5")
    assert "| rounds=3 | 1 | 0.5 |  | 1 not finite |" in (only_folder() / "table.md").read_text()
    written = records.stamps(only_folder())
    assert launch(run, "seed=0,1", "rounds=3")[0] == 0
    assert records.stamps(only_folder()) == written, "the same record is not written again"


def test_a_job_that_slurm_has_put_back_into_its_queue_has_not_failed(launch: Sweep) -> None:
    """Its process ends without a word, so that submitit waits for the next one; other commands' errors are errors."""

    def run(cfg: DictConfig) -> float:
        raise subprocess.CalledProcessError(*ended[cfg.seed])

    requeue = ["scontrol", "requeue", "6"]
    ended = [(-signal.SIGTERM, requeue), (1, requeue), (-signal.SIGTERM, ["git", "status"])]
    with pytest.raises(SystemExit):
        launch(run, "seed=0,1")
    (row,) = records.read(only_folder())
    assert sorted(job.status for job in row.jobs) == ["not begun", "unfinished"]
    code, _, err = launch(run, "seed=1,2")
    assert code == 1 and "error: 2 of 2 jobs failed" in err


def test_a_failed_job_leaves_nothing_in_memory_and_its_traceback_on_the_terminal(launch: Sweep) -> None:
    models, left = list[weakref.ref[set[float]]](), []

    def run(cfg: DictConfig) -> float:
        left.append(sum(each() is not None for each in models))
        model = {1.0}
        models.append(weakref.ref(model))
        try:
            return model.pop() / 0
        except ZeroDivisionError:
            return min(model)

    code, out, _ = launch(run, "seed=0,1,2")
    assert (code, left) == (1, [0, 0, 0])
    assert out.count("return model.pop() / 0") == out.count("return min(model)") == 3


@pytest.mark.parametrize(("status", "ends"), [(states.FINISHED, (0, "")), (states.UNFINISHED, (1, "error: in use\n"))])
def test_a_job_that_fails_here_may_run_in_another_command(status: str, ends: tuple[int, str], launch: Sweep) -> None:
    """As two equal sweeps, started at the same time: the job's record is the other one's by the end of this one."""

    def run(cfg: DictConfig) -> float:
        if cfg.seed == 0:
            raise UserError("in use")
        (path,) = (path for path in (only_folder() / "jobs").iterdir() if "seed=0" in path.read_text())
        job = records.read_job(path)
        assert job is not None and job.status == states.FAILED
        write_text_atomically(path, checksummed_json.text(asdict(job) | {"status": status, "objective": 0.5}))
        return 0.5

    code, _, err = launch(run, "seed=0,1")
    assert (code, err) == ends


def test_a_job_with_a_faulty_config_fails_alone(launch: Sweep) -> None:
    """And is told before the first job, in whatever batches Hydra starts the jobs."""
    values, size = "local.lr=0.25,fast,-1,0.5", "hydra.sweeper.max_batch_size=3"
    code, out, err = launch(lambda cfg: build.build(cfg).local.lr, values, "seed=0,1", size)
    assert code == 1
    assert err.splitlines()[-1] == "error: 4 of 8 jobs failed"
    errors = {row.setting: job.error for row in records.read(only_folder()) for job in row.of("failed")}
    assert errors == {
        ("local.lr=fast",): "local.lr must be a number, got 'fast'",
        ("local.lr=-1",): "local.lr must be > 0, got -1.0",
    }
    text = [errors[key,] for key in ("local.lr=fast", "local.lr=-1")]
    told = [out.index(f"job {n}/8 and 1 other will fail: {each}") for n, each in zip((3, 5), text, strict=True)]
    assert told[0] < told[1] < out.index("job 1/8: local.lr=0.25 seed=0") and out.count("will fail") == 2


def test_some_faults_of_a_grid_stand_for_hundreds(launch: Sweep) -> None:
    _, out, _ = launch(lambda cfg: 0.5, f"rounds=1,{','.join(str(-each) for each in range(1, 9))}")
    assert out.count("will fail: rounds must be") == ahead.MAX_FAULTS and "and 3 more faults" in out


def test_the_faults_of_a_grid_are_those_of_jobs_with_their_number_and_folder(launch: Sweep) -> None:
    """Hydra gives a job both when it starts the job, in whatever batch: here the first job has a cohort of none."""
    values = (
        "participation.cohort_size=${hydra:job.num}",
        "dataset=cifar10",
        "dataset.root=${hydra:runtime.output_dir}/x",
    )
    _, out, _ = launch(lambda cfg: build.build(cfg).seed, "seed=0,1,2", *values, "hydra.sweeper.max_batch_size=1")
    told = [line.split(": ")[1:] for line in out.splitlines() if "will fail" in line]
    assert told == [["job 1/3 will fail", "participation.cohort_size must be >= 1, got 0"]]
    assert [row.values() for row in records.read(only_folder())] == [[1.0, 2.0]]


@pytest.mark.parametrize("launcher", ["basic", "submitit_slurm"])
def test_this_machine_says_nothing_of_those_where_slurm_runs_jobs(
    launcher: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with initialize_config_dir(str(build.conf_dir()), version_base="1.3"):
        cfg = compose("train", ["device=cuda:99"], return_hydra_config=True)
    cfg.hydra.launcher["_target_"] = f"hydra_plugins.{launcher}.Launcher"
    context = SimpleNamespace(config_loader=SimpleNamespace(load_sweep_config=lambda *_: cfg))
    sweeper = SimpleNamespace(config=cfg, batch_index=1, overrides=[[["seed=0"]]], hydra_context=context)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    monkeypatch.setattr(OmegaConf, "masked_copy", None)  # a check that copies a config takes a fifth longer
    ahead._validate(sweeper, [])
    assert ("device must be" in caplog.text) == (launcher == "basic")


def test_an_interpolation_stays_in_a_job(launch: Sweep) -> None:
    """Its record is that of a job of the grid. An interpolation that cannot be resolved is a fault of its job alone."""
    words = ("server_optimizer=sgd", "server_optimizer.lr=${local.lr}", "local.weight_decay=${.momentum}")
    code, _, err = launch(lambda cfg: build.build(cfg).local.lr, "local.lr=0.1,0.2", "seed=0,${nope}", *words)
    assert (code, err.splitlines()[-1]) == (1, "error: 2 of 4 jobs failed")
    states = [[job.status for job in row.jobs] for row in records.read(only_folder())]
    assert [*map(sorted, states)] == 2 * [["failed", "finished"]]


def test_the_same_command_tries_again_what_failed(launch: Sweep) -> None:
    broken = True

    def run(cfg: DictConfig) -> float:
        if broken and cfg.seed == 1:
            raise Diverged("diverged in round 3")
        return 0.25

    assert launch(run, "seed=0,1")[0] == 1
    assert len(records.read(only_folder())[0].of("failed")) == 1
    broken = False
    seen = []
    launch(lambda cfg: seen.append(records.read(only_folder())[0].of("failed")) or run(cfg), "seed=0,1")
    assert seen == [[], []]  # until it fails again, it is not a failure
    (row,) = table().values()
    assert (row["seeds"], row["failed"]) == ("2", "0")


def test_the_table_is_there_while_jobs_run(launch: Sweep) -> None:
    seen = []

    def run(cfg: DictConfig) -> float:
        row = table()[""]
        seen.append([row[column] for column in ("seeds", "unfinished", "not begun")])
        return 0.5

    launch(run, "seed=0,1,2")
    assert seen == [["0", "1", "2"], ["1", "1", "1"], ["2", "1", "0"]]


@pytest.mark.parametrize("killed", [False, True])
def test_the_table_of_a_large_sweep_is_made_seldom_and_is_whole_at_the_end(
    killed: bool, launch: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 1,500 jobs takes 0.1 s, twice a job."""
    made: list[Path] = []
    monkeypatch.setattr(callback.table, "MIN_SECONDS", -1)
    monkeypatch.setattr(callback.table, "PAUSE", 1e9)
    monkeypatch.setattr(callback.table, "refresh", lambda folder: [made.append(folder), refresh(folder)][1])

    def run(cfg: DictConfig) -> float:
        if killed and cfg.seed == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        return float(len(made))

    code, _, _ = launch(run, "seed=0,1,2")
    counts = [table()[""][column] for column in ("seeds", "stopped", "mean")]
    assert (code, counts) == ((143, ["2", "1", "1.0"]) if killed else (0, ["3", "0", "1.0"])) and len(made) == 2


FORKED = """
import os, sys
from pathlib import Path
from fedlab_runner.sweep import table

folder = Path(sys.argv[1])
table.begin(folder)
table._paces[folder].seconds = table._paces[folder].made = 1e9
if os.fork():
    os.wait()
else:
    table.refresh_in_turn(folder)
"""


def test_a_process_that_a_launcher_forks_makes_each_table(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], check=True)
    assert (tmp_path / "table.md").exists()


def test_a_signal_ends_the_whole_sweep(launch: Sweep) -> None:
    ran = []

    def run(cfg: DictConfig) -> float:
        ran.append(cfg.seed)
        if cfg.seed == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        return 0.5

    code, out, err = launch(run, "seed=0,1,2")
    assert code == 128 + signal.SIGTERM
    assert ran == [0, 1]
    assert err == f"stopped by signal 15; the same command continues with the sweep ({only_folder()})\n"
    assert "seeds" not in out, "no table below the line"
    assert [
        job.status for row in records.read(only_folder()) for job in sorted(row.jobs, key=lambda job: job.seed)
    ] == [
        "finished",
        "stopped",
        "not begun",
    ]


def test_a_fault_in_the_command_makes_no_sweep(launch: Sweep) -> None:
    code, _, err = launch(score, "local.lrr=1,2")
    assert (code, err) == (2, "error: local.lrr is not a key: did you mean local.lr?\n")


def test_a_table_has_the_settings_of_the_experiment_as_it_is_now(launch: Sweep) -> None:
    path = Path("mine/experiment/own.yaml")
    path.parent.mkdir(parents=True)
    for rates in ("0.1,0.2", "0.3,0.4"):
        path.write_text(f"# @package _global_\nhydra: {{sweeper: {{params: {{local.lr: '{rates}'}}}}}}\n")
        assert launch(lambda cfg: 0.5, "--config-dir=mine", "experiment=own")[0] == 0
        tables = sorted(Path("outputs/sweeps").glob("*/table.md"), key=lambda each: each.stat().st_mtime_ns)
        assert re.findall(r"local\.lr=(0\.\d)", tables[-1].read_text()) == rates.split(",")


def test_numbers_of_the_summary_are_in_the_csv_unless_they_are_of_another_length(launch: Sweep) -> None:
    from hydra.core.hydra_config import HydraConfig

    def run(cfg: DictConfig) -> float:
        path = Path(HydraConfig.get().runtime.output_dir) / "summary.json"
        path.write_text(json.dumps({"rounds": 3, "best": 0.5 + cfg.seed, "run_id": "a text"}))
        return 0.5

    launch(run, "seed=0,1", "rounds=3")
    row = table()["rounds=3"]
    assert (float(row["best mean"]), float(row["best std"])) == (1.0, pytest.approx(0.5**0.5))
    assert "run_id mean" not in row
    launch(run, "seed=0,1", "rounds=2")
    other = next(path for path in Path("outputs/sweeps").iterdir() if "rounds=2" in (path / "command.txt").read_text())
    assert "best mean" not in (other / "table.csv").read_text()


def test_a_mean_in_the_csv_is_that_of_all_counted_seeds_and_unrounded() -> None:
    """Two of three seeds have reached a target; a fourth, whose objective is not finite, counts nowhere."""
    made = [
        job(seed, value, summary={"rounds_to_target": rounds, "best": value})
        for seed, value, rounds in ((0, 0.1, 5), (1, 0.2, 7), (2, 0.4, None), (3, math.nan, 9))
    ]
    (row,) = csv.DictReader(csv_text([Row(("x=1",), made), Row(("x=2",), made[:2])]).splitlines()[:2])
    assert (row["seeds"], row["not finite"], row["rounds_to_target mean"]) == ("3", "1", "")
    assert float(row["mean"]) == float(row["best mean"]) == statistics.fmean([0.1, 0.2, 0.4])
    assert float(row["std"]) == statistics.stdev([0.1, 0.2, 0.4])


# The parts.


def test_the_id_is_readable_and_does_not_depend_on_the_order() -> None:
    name = callback.sweep_id(GRID)
    assert name.startswith("algorithm_std_seed-") and name == callback.sweep_id(reversed(GRID))
    assert name != callback.sweep_id([*GRID[:2], "seed=0,1,2"])
    assert callback.sweep_id(["seed=range(3)"]).startswith("seed-")
    assert callback.sweep_id(["evaluation.matrix=[a,b]", "x='a,b(c)'", "seed=0,1"]).startswith("seed-"), "lists stay"
    assert callback.sweep_id(["hparams_search=optuna"]).startswith("hparams_search-optuna-")
    assert "/" not in callback.sweep_id(["+a/b@c.d=1,2"])


def job(seed: int, objective: float | None, status: str = "finished", **more: Any) -> Job:
    return Job([f"seed={seed}", "x=1"], seed, status, objective, "outputs/x", **more)


def test_one_seed_has_no_spread_and_what_is_not_finite_does_not_count() -> None:
    row = Row(("x=1",), [job(0, 0.5), job(1, float("nan")), job(2, None, "failed", error="why"), job(3, 9.0, "failed")])
    assert cells([row])[1] == [["x=1", "1", "0.5", "", "2 failed; 1 not finite"]]
    assert "| 2 failed (why); 1 not finite |" in markdown([row])


def test_of_losses_the_smallest_is_the_best() -> None:
    told = {"metric": "test/loss", "rule": "last"}
    rows = [Row((f"x={value}",), [job(0, value, summary=told)]) for value in (0.2, 0.1, 0.3)]
    assert [row.setting for row in ranking.best_first(rows)] == [("x=0.1",), ("x=0.2",), ("x=0.3",)]


def test_settings_are_in_natural_order(tmp_path: Path) -> None:
    for value in (20, 5, 100, 0.5, 0.05, 0.1, "1e-05", -3):
        member = Job([f"delay.std={value}"], 0, "finished", 0.5, "")
        (tmp_path / "jobs").mkdir(exist_ok=True)
        (tmp_path / "jobs" / f"{value}.json").write_text(checksummed_json.text(asdict(member)))
    ordered = (-3, "1e-05", 0.05, 0.1, 0.5, 5, 20, 100)
    assert [row.setting for row in records.read(tmp_path)] == [(f"delay.std={value}",) for value in ordered]
    assert records.natural([f"x={10**400}"]) > records.natural([f"x={10**399}"]), "beyond what a float holds"


def test_a_bar_in_an_override_does_not_break_the_table() -> None:
    assert "a\\|b" in markdown([Row(("name=a|b",), [job(0, 0.5)])])


def test_the_record_of_a_finished_job_is_read_again_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep looks at all records whenever a job begins or ends."""
    read: list[str] = []
    real = checksummed_json.read
    monkeypatch.setattr(checksummed_json, "read", lambda path: [read.append(path.stem), real(path)][1])
    (tmp_path / "jobs").mkdir()
    for seed, status in enumerate(("finished", "finished", "unfinished")):
        text = checksummed_json.text(asdict(job(seed, 0.5, status)))
        write_text_atomically(tmp_path / "jobs" / f"{seed}.json", text)
    first = records.read(tmp_path)
    assert records.read(tmp_path) == first and sorted(read) == ["0", "1", "2", "2"]
    write_text_atomically(tmp_path / "jobs" / "1.json", checksummed_json.text(asdict(job(1, 0.6))))
    assert records.read(tmp_path)[0].values() == [0.5, 0.6] and sorted(read) == ["0", "1", "1", "2", "2", "2"]


def test_the_grid_is_read_again_only_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job needs it several times, and it has a line of overrides for each job."""
    read: list[str] = []
    real = untrusted.read_json
    monkeypatch.setattr(untrusted, "read_json", lambda path: [read.append(path.name), real(path)][1])
    write_text_atomically(tmp_path / "grid.json", json.dumps([["seed=0"]]))
    assert records.size(tmp_path) == len(records.read(tmp_path)) == 1 and read == ["grid.json"]
    write_text_atomically(tmp_path / "grid.json", json.dumps([["seed=0"], ["seed=1"]]))
    assert records.size(tmp_path) == 2 and read == ["grid.json"] * 2


def test_a_half_written_member_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.json").write_text('{"overrides": [')
    assert refresh(tmp_path) == []


def test_a_record_with_a_state_of_reports_alone_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    for seed, status in enumerate((*states.OF_JOBS, states.MISSING, states.DAMAGED)):
        text = checksummed_json.text(asdict(job(seed, 0.5, status)))
        (tmp_path / "jobs" / f"{seed}.json").write_text(text)
    (row,) = refresh(tmp_path)
    (counts,) = csv.DictReader((tmp_path / "table.csv").read_text().splitlines())
    assert [each.status for each in row.jobs] == list(states.OF_JOBS)
    assert all(counts[state] == "1" for state in states.OF_JOBS if state != states.FINISHED)


@pytest.mark.parametrize("status", states.OF_JOBS)
def test_the_table_is_written_once_where_an_objective_is_not_a_number(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN is no NaN that is read again; in Python 3.13 not even in an equal dataclass."""
    written: list[str] = []

    def write(path: Path, text: str) -> None:
        written.append(path.name)
        assert len(written) < 9, "without end"

    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.json").write_text(checksummed_json.text(asdict(job(0, math.nan, status))))
    monkeypatch.setattr(callback.table, "write_text_atomically", write)
    refresh(tmp_path)
    assert written == ["table.md", "table.csv"]


def test_concurrent_writers_leave_a_whole_table(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        for i in range(10):
            member = Job([f"seed={number * 10 + i}"], number * 10 + i, "finished", 1.0, "")
            write_text_atomically(tmp_path / "jobs" / f"{number}-{i}.json", checksummed_json.text(asdict(member)))
            refresh(tmp_path)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "| (defaults) | 80 | 1 | 0 |  |" in (tmp_path / "table.md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs", "table.csv", "table.md"]


def test_a_search_config_does_not_set_the_mode() -> None:
    for path in (build.conf_dir() / "hparams_search").glob("*.yaml"):
        assert OmegaConf.select(OmegaConf.load(path), "hydra.mode") is None


@pytest.mark.parametrize("metric", ["test/accuracy", "test/loss"])
def test_a_search_looks_for_the_best(metric: str) -> None:
    """Whatever the metric is; a direction that the user sets must agree with it."""
    build.register_resolvers()
    for path in (build.conf_dir() / "hparams_search").glob("*.yaml"):
        cfg = OmegaConf.merge({"evaluation": {"metric": metric}}, OmegaConf.load(path))
        assert cfg.hydra.sweeper.direction == ("minimize" if metric == "test/loss" else "maximize")
    for told, mode in itertools.product((None, "minimize", "maximize"), (RunMode.RUN, RunMode.MULTIRUN)):
        hydra = OmegaConf.create({"mode": mode, "sweeper": {} if told is None else {"direction": told}})
        if mode == RunMode.MULTIRUN and told is not None and told != direction_of(metric):
            with pytest.raises(
                UserError, match=rf"^hydra\.sweeper\.direction must be m\w+ for .*={metric}, got {told}$"
            ):
                check_direction(hydra, metric)
        else:
            check_direction(hydra, metric)


# For real.


def test_a_real_sweep_skips_what_is_finished_and_a_noted_command_is_one_of_its_jobs(
    launch: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "local").mkdir(parents=True)
    (tmp_path / "mine" / "local" / "slow.yaml").write_text((build.conf_dir() / "local" / "sgd.yaml").read_text())
    command = ["-m", "--config-dir", "mine", "algorithm=fedavg,fedbuff", *TINY, "local=slow"]

    def fedlab(*arguments: str) -> str:
        code, out, err = launch(run.run, *arguments, multirun=False)
        assert (code, err) == (0, "")
        return " ".join(out.split())

    fedlab(*command)
    shown = (only_folder() / "table.csv").read_text()
    assert shown.count("\n") == 3
    (only_folder() / "table.csv").unlink()
    noted_by_hydra = {path: path.stat().st_mtime_ns for path in tmp_path.glob("outputs/fed*/.hydra/*.yaml")}
    tables: list[Path] = []
    monkeypatch.setattr(callback.table, "refresh", lambda folder: [tables.append(folder), refresh(folder)][1])
    assert fedlab(*command).count(" finished before: ") == 2
    assert (only_folder() / "table.csv").read_text() == shown and len(tables) == 1  # of the start alone
    assert len(noted_by_hydra) == 6
    assert all(path.stat().st_mtime_ns == before for path, before in noted_by_hydra.items()), (
        "equal files are not written again"
    )
    (job,) = (tmp_path / "outputs").glob("fedbuff-*")
    noted = json.loads((job / COMMANDS_FILE).read_text().splitlines()[0])
    assert noted["cwd"] == str(tmp_path)
    assert "is finished already" in fedlab(*shlex.split(noted["command"])[1:])
    assert len((job / COMMANDS_FILE).read_text().splitlines()) == 1
    assert len(list((tmp_path / "outputs").glob("fed*-*"))) == 2


def test_a_job_in_the_folder_of_another_run_is_refused_and_leaves_it_as_it_is(launch: Sweep, tmp_path: Path) -> None:
    """So the first run keeps its method and its sweep, and the second sweep has none of its numbers."""
    here = ("hydra.sweep.dir=outputs", "hydra.sweep.subdir=${hydra.job.num}", *TINY)
    folder, log = tmp_path / "outputs" / "0", "train.log"

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != log}

    assert launch(run.run, "algorithm=fedavg", *here)[0] == 0
    before = files()
    for choice in ("algorithm=scaffold", "local.lr=fast"):
        shutil.rmtree(tmp_path / "outputs" / "sweeps")
        assert launch(run.run, choice, *here)[0] == 1
        ((job,),) = [row.jobs for row in records.read(only_folder())]
        assert (job.status, job.folder, job.summary.get("objective")) == ("failed", "", None)
        assert files() == before
    assert launch(run.run, "algorithm=scaffold", *TINY, f"hydra.run.dir={folder}", multirun=False)[0] == 2
    assert files() == before
    with RunLock(folder):
        assert launch(run.run, "algorithm=fedavg", *TINY, "rounds=9", f"hydra.run.dir={folder}", multirun=False)[0] == 2
    assert files().keys() == before.keys() and (folder / ".hydra" / "config.yaml").read_bytes() in before.values()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_a_real_sweep_in_other_processes(launcher: str, tmp_path: Path) -> None:
    """Needs the extras; the jobs only share the disk."""
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    grid = ["seed=0,1", "local.lr=0.05,fast", f"hydra/launcher={launcher}"]
    start = [sys.executable, "-m", "fedlab_runner", "-m", *SMALL, *grid]
    ended = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1] == "error: 2 of 4 jobs failed"
    (folder,) = (tmp_path / "outputs" / "sweeps").iterdir()
    assert sorted((len(row.values()), len(row.of("failed"))) for row in records.read(folder)) == [(0, 2), (2, 0)]


def test_a_job_on_slurm_may_be_put_back() -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra slurm")
    build.register_resolvers()
    with initialize_config_dir(str(build.conf_dir()), version_base="1.3"):
        launcher = compose("train", ["hydra/launcher=slurm"], return_hydra_config=True).hydra.launcher
    assert launcher._target_.endswith("SlurmLauncher") and launcher.additional_parameters.requeue is True
    assert launcher.max_num_timeout > 0 and launcher.signal_delay_s < 60 * launcher.timeout_min


def test_a_job_on_slurm_has_the_cores_that_it_asks_for(
    launch: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun of Slurm 22.05 and later does not take them over from sbatch."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra slurm")
    for name, source in {"srun": "echo ${SRUN_CPUS_PER_TASK-} > cores", "sbatch": "bash $1; exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{source}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path), os.environ["PATH"])))
    monkeypatch.delenv("SRUN_CPUS_PER_TASK", raising=False)
    for asked in ("4", ""):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", asked)  # which Slurm sets
        words = ("hydra/launcher=slurm", f"hydra.launcher.cpus_per_task={asked or 'null'}")
        assert launch(lambda cfg: 0.0, *words)[0] == 2
        assert Path("cores").read_text() == f"{asked}\n"


def test_a_job_in_a_process_of_a_launcher_is_not_stopped_by_a_lost_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It logs its beginning."""
    monkeypatch.setattr(streams, "_optional", [])
    monkeypatch.setattr(HydraConfig, "get", lambda: SimpleNamespace(mode=RunMode.MULTIRUN))
    monkeypatch.setattr(callback, "JobRecord", lambda cfg: raised(RunFailed()))
    with pytest.raises(RunFailed):
        train.job(OmegaConf.create())
    assert streams._optional


def test_a_local_launcher_gets_no_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra slurm")
    kept: list[str] = []

    def keep() -> None:
        kept.append("kept")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    monkeypatch.setattr(callback.signals, "keep_from_children", keep)
    monkeypatch.chdir(tmp_path)
    build.register_resolvers()
    with initialize_config_dir(str(build.conf_dir()), version_base="1.3"), mock.patch.dict(os.environ):
        for launcher in ("local", "basic"):
            cfg = compose("train", [f"hydra/launcher={launcher}"], return_hydra_config=True)
            callback.SweepCallback().on_multirun_start(cfg)
            callback.SweepCallback().on_multirun_end(cfg)
            assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "a program gets it afterwards"
    assert kept == ["kept"]


def test_a_sweep_that_a_local_launcher_cannot_start_gives_ctrl_c_back(
    launch: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher", reason="needs the extra slurm"
    ).LocalLauncher

    def fail(*given: Any) -> Any:
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        raise RunFailed("no process")

    monkeypatch.setattr(launcher, "launch", fail)
    assert launch(lambda cfg: 0.0, "hydra/launcher=local", "seed=0,1")[0] == 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


REFUSED = "echo sbatch: error: invalid partition >&2; exit 1"
CANCELLED = r"printf 'JobID|State|NodeList\n7_0|CANCELLED|\n7_1|RUNNING|a\n'"


@pytest.mark.parametrize(
    ("commands", "code", "line"),
    [
        ({}, 2, "hydra/launcher=slurm needs the commands of Slurm, and this machine has no srun"),
        ({"sbatch": REFUSED}, 2, "Slurm has not taken the jobs: sbatch: error: invalid partition"),
        (
            {"sbatch": "echo Submitted batch job 7", "sacct": CANCELLED},
            1,
            "job 7_0 of the sweep's launcher ended without a result (CANCELLED): its output is in "
            "outputs/.submitit/7_0; jobs that have begun continue, and the same command continues with the others",
        ),
    ],
)
def test_what_slurm_does_not_take_or_ends_is_one_line(
    commands: dict[str, str], code: int, line: str, launch: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra slurm")
    for name, source in (commands and {"srun": "", **commands}).items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{source}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # this machine may have Slurm
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 0)  # how long it waits for a slow file system
    ended, _, err = launch(lambda cfg: 0.0, "hydra/launcher=slurm", "seed=0,1")
    assert (ended, err.splitlines()[-1]) == (code, f"error: {line}") and "Traceback" not in err
    assert Path("outputs/sweeps").exists() == (code == 1)
