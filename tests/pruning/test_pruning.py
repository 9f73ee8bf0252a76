"""Pruned runs of a sweep: which rule ends them, what is left of them, and how they continue."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedlab_runner.evaluation.evaluator import Evaluation
from fedlab_runner.experiment import pruner
from fedlab_runner.pruning.base import Curve, Others, Pruning
from fedlab_runner.pruning.median import Median
from fedlab_runner.pruning.none import NoPruning
from fedlab_runner.report import cli
from fedlab_runner.sweep import callback, records
from fedlab_runner.tracking.summary import evaluations
from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.errors import Pruned
from fedlab_runner.utils.files import write_text_atomically
from tests.helpers.report_files import curve, write_run

ACCURACY = Evaluation(1, 100, False, [], 1, "test/accuracy", "best", 1, 0, None)
OTHERS = [{1: 0.2, 2: 0.4}, {1: 0.3, 2: 0.5}, {1: 0.4, 2: 0.9}]


@pytest.mark.parametrize(
    ("own", "ends"),
    [
        ({1: 0.29}, True),
        ({1: 0.3}, False),  # as good as the median
        ({1: 0.6, 2: 0.1}, False),  # the best so far counts
        ({1: 0.1, 2: 0.49}, True),
        ({1: 0.1, 2: math.nan}, True),
        ({1: math.nan}, True),
        ({1: math.nan, 2: 0.5}, False),
        ({3: 0.0}, False),  # nobody was evaluated there
        ({}, False),
    ],
)
def test_the_median_rule(own: dict[int, float], ends: bool) -> None:
    assert (Median(warmup=0, min_runs=3).verdict(own, lambda: OTHERS) is not None) == ends
    assert NoPruning().verdict(own, lambda: OTHERS) is None


def test_neither_early_nor_with_few_others() -> None:
    rule = Median(warmup=2, min_runs=3)
    assert rule.verdict({1: 0.0}, lambda: OTHERS) is None and rule.verdict({2: 0.0}, lambda: OTHERS)
    assert rule.verdict({2: 0.0}, lambda: OTHERS[:2]) is None
    assert rule.verdict({2: 0.0}, lambda: [*OTHERS[:2], {2: math.nan}, {2: math.inf}, {1: 0.7}]) is None
    two, both = Median(0, 2), [{1: 0.9, 2: 0.4}, {2: 0.5}]  # between the two, of this round alone
    assert two.verdict({2: 0.44}, lambda: both) and two.verdict({2: 0.45}, lambda: both) is None
    with pytest.raises(ValueError, match=r"^warmup must be >= 0, got -1$"):
        Median(-1, 1)
    with pytest.raises(ValueError, match=r"^min_runs must be >= 1, got 0$"):
        Median(0, 0)


def test_without_a_rule_no_file_is_read() -> None:
    def others() -> list[dict[int, float]]:
        raise AssertionError

    assert NoPruning().verdict({5: 0.0}, others) is None
    assert Median(warmup=6, min_runs=1).verdict({5: 0.0}, others) is None


def write_sweep(outputs: Path, *accuracies: float, metric: str = "test/accuracy", inside: str = ".") -> Path:
    """A sweep of finished runs of three rounds with one accuracy each, and one that has failed; runs lie `inside`."""
    folder = outputs / "sweeps" / "one"
    (folder / "jobs").mkdir(parents=True)
    for i, accuracy in enumerate([*accuracies, 1.0]):
        run = outputs / inside / f"run-{i}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("".join(json.dumps({"round": r, metric: accuracy}) + "\n" for r in range(4)))
        status, path = "failed" if i == len(accuracies) else "finished", f"elsewhere/{run.relative_to(outputs)}"
        job = callback.Job([f"seed={i}"], i, status, accuracy, path)
        (folder / "jobs" / f"{i}.json").write_text(checksummed_json.text(job.__dict__))
    return folder


@pytest.mark.parametrize("inside", [".", "a/b"])
def test_it_compares_with_the_finished_runs_of_its_sweep(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(callback.FOLDER, str(write_sweep(tmp_path, 0.5, 0.6, 0.7, inside=inside)))
    rows = [{"round": 0, "test/accuracy": 0.9}, {"round": 1, "test/accuracy": 0.55}]

    def look(rounds: int = 3, every: int = 1, folder: str = "mine", least: int = 3) -> None:
        evaluation = Evaluation(every, 100, False, [], 1, "test/accuracy", "best", 1, 0, None)
        (tmp_path / folder).mkdir(exist_ok=True)
        pruner.Pruner(tmp_path / folder, Median(0, least), evaluation, rounds).look(lambda: rows, 1)

    look(rounds=1)  # the last round
    look(every=2)  # not evaluated
    look(least=4)
    look(folder=f"{inside}/run-2")  # it is not compared with itself
    with pytest.raises(Pruned, match=r"^pruned after round 1: its best so far is worse than the median of 3 finished"):
        look()
    assert pruner.read_note(tmp_path / "mine")["objective"] == 0.55
    monkeypatch.delenv(callback.FOLDER)
    look()


def test_a_round_reads_the_records_only_if_one_was_written_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be hundreds of records, and a round may take a few milliseconds."""
    reads, finished = list[Path](), records.finished
    monkeypatch.setattr(records, "finished", lambda folder: [reads.append(folder), *finished(folder)][1:])
    monkeypatch.setenv(callback.FOLDER, str(sweep := write_sweep(tmp_path, 0.5, 0.6)))
    watch = pruner.Pruner(tmp_path / "mine", Median(0, 3), ACCURACY, 9)
    for round in range(1, 4):
        watch.look(lambda: [{"round": 1, "test/accuracy": 0.1}], round)
    assert len(reads) == 1
    (tmp_path / "run-9").mkdir()
    (tmp_path / "run-9" / "metrics.jsonl").write_bytes((tmp_path / "run-1" / "metrics.jsonl").read_bytes())
    job = callback.Job(["seed=9"], 9, "finished", 0.6, "run-9")
    write_text_atomically(sweep / "jobs" / "9.json", checksummed_json.text(job.__dict__))
    (tmp_path / "mine").mkdir()
    with pytest.raises(Pruned, match="median of 3 finished"):
        watch.look(lambda: [{"round": 1, "test/accuracy": 0.1}], 4)
    pruner.Pruner(tmp_path / "mine", NoPruning(), ACCURACY, 9).look(pytest.fail, 1)  # needs no history


def test_an_evaluation_reads_the_rows_since_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 50,000 rounds may have 50,000 evaluations."""
    reads, curves = list[int](), list[Curve]()

    @dataclass(frozen=True)
    class Looking(Pruning):
        def verdict(self, own: Curve, others: Others) -> str | None:
            curves.append(dict(own))
            return None

    def counted(rows: Sequence[dict[str, Any]], *rule: Any) -> list[dict[str, Any]]:
        reads.append(len(rows))
        return evaluations(rows, *rule)

    monkeypatch.setattr(pruner, "evaluations", counted)
    monkeypatch.setenv(callback.FOLDER, str(write_sweep(tmp_path)))
    watch = pruner.Pruner(tmp_path / "mine", Looking(), ACCURACY, 9)
    rows = [{"round": round, "test/accuracy": round / 10} for round in range(9)]
    for round in range(4, 9):  # the run continues after round 3
        watch.look(rows[: round + 1].copy, round)
    assert reads == [5, 1, 1, 1, 1]
    assert curves[-1] == {round: round / 10 for round in range(1, 9)}


def test_a_finished_run_whose_rows_cannot_be_read_is_read_in_a_later_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(callback.FOLDER, str(write_sweep(tmp_path, 0.5, 0.6, 0.7)))
    watch, (gone, *_) = pruner.Pruner(tmp_path / "mine", Median(0, 3), ACCURACY, 9), sorted(tmp_path.glob("run-*"))
    rows = (gone / "metrics.jsonl").read_bytes()
    (gone / "metrics.jsonl").unlink()
    watch.look(lambda: [{"round": 1, "test/accuracy": 0.1}], 1)
    (gone / "metrics.jsonl").write_bytes(rows)
    (tmp_path / "mine").mkdir()
    with pytest.raises(Pruned, match="median of 3 finished"):
        watch.look(lambda: [{"round": 1, "test/accuracy": 0.1}], 2)


def test_of_a_loss_less_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(callback.FOLDER, str(write_sweep(tmp_path, 0.5, 0.6, 0.7, metric="test/loss")))
    evaluation = Evaluation(1, 100, False, [], 1, "test/loss", "best", 1, 0, None)
    pruner.Pruner(tmp_path, Median(0, 3), evaluation, 3).look(lambda: [{"round": 1, "test/loss": 0.55}], 1)
    with pytest.raises(Pruned):
        pruner.Pruner(tmp_path, Median(0, 3), evaluation, 3).look(lambda: [{"round": 1, "test/loss": 0.65}], 1)


def test_the_last_round_before_a_run_was_made_longer_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(callback.FOLDER, str(write_sweep(tmp_path, 0.5, 0.6, 0.7)))
    evaluation, rows = Evaluation(2, 100, False, [], 1, "test/accuracy", "best", 1, 0, None), [(1, 0.9), (2, 0.55)]
    with pytest.raises(Pruned) as pruned:
        pruner.Pruner(tmp_path, Median(0, 3), evaluation, 4).look(
            lambda: [{"round": round, "test/accuracy": accuracy} for round, accuracy in rows], 2
        )
    assert pruned.value.objective == 0.55


def test_what_was_given_up_stays_so_under_the_same_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(callback.FOLDER, str(write_sweep(tmp_path, 0.5, 0.6, 0.7)))
    with pytest.raises(Pruned):
        pruner.Pruner(tmp_path, Median(0, 3), ACCURACY, 3).look(lambda: [{"round": 1, "test/accuracy": math.nan}], 1)
    with pytest.raises(Pruned) as again:
        pruner.Pruner(tmp_path, Median(0, 3), ACCURACY, 3).start()
    assert again.value.round == 1 and math.isnan(again.value.objective)
    before = (tmp_path / pruner.NOTE_FILE).read_text()
    pruner.Pruner(tmp_path, Median(2, 3), ACCURACY, 3).start()
    assert not (tmp_path / pruner.NOTE_FILE).exists()
    (tmp_path / pruner.NOTE_FILE).write_text(before)
    monkeypatch.setenv(callback.FOLDER, str(tmp_path / "sweeps" / "another"))
    pruner.Pruner(tmp_path, Median(0, 3), ACCURACY, 3).start()


@pytest.mark.slow  # commands of the user's, each from its start
def test_a_sweep_gives_up_and_the_run_can_go_on(tmp_path: Path) -> None:
    """Three good learning rates, then one that learns nothing: it ends after round 2 of 4, the sweep does not fail."""
    small = [
        "model=logistic",
        "num_clients=4",
        "participation.cohort_size=2",
        "logger=none",
        "device=cpu",
        "delay=none",
    ]
    common = ["algorithm=fedavg", *small, "rounds=4", "evaluation.every=2", "executor=loop"]
    rule = ["pruning=median", "pruning.warmup=0", "pruning.min_runs=3"]

    def fedlab(*arguments: str) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "fedlab_runner", *arguments, *common]
        ran = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran

    command = ["-m", "local.lr=0.1,0.2,0.3,1e-9", *rule]
    assert re.search(r"job 4/4 pruned after round 2: \d+\.\d\d % in ", fedlab(*command).stdout)
    (note,) = tmp_path.glob("outputs/*/pruned.json")
    assert json.loads(note.read_text())["reason"].startswith("its best so far is worse than ")
    rows = (note.parent / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 3 and json.loads(note.read_text())["objective"] == json.loads(rows[2])["test/accuracy"]
    (table,) = tmp_path.glob("outputs/sweeps/*/table.csv")
    assert sorted(line.split(",")[1:3] for line in table.read_text().splitlines()[1:]) == [["0", "0"]] + 3 * [
        ["1", "0"]
    ]
    again = fedlab(*command).stdout
    assert again.count(" finished before: ") == 3 and "pruned after round 2" in again
    page, _ = cli.write([table.parent])
    assert "| pruned<br>seed 0: pruned (round 2 of 4)," in (page.parent / "report.md").read_text()
    fedlab("local.lr=1e-9")
    assert len((note.parent / "metrics.jsonl").read_text().splitlines()) == 5 and not note.exists()


def test_a_report_says_that_a_run_was_given_up(tmp_path: Path) -> None:
    for seed in (0, 1):
        folder = write_run(tmp_path, f"seed={seed}", "rounds=3", "evaluation.every=1", rows=curve(0.1, 0.2))
        (folder / "pruned.json").write_text(checksummed_json.text({"round": 1}))
    text = (cli.write([tmp_path])[0].parent / "report.md").read_text()
    assert "pruned<br>seed 0: pruned (round 1 of 3), 20.0\xa0% so far<br>seed 1: pruned (round 1 of 3)" in text


def test_pruning_outside_of_a_sweep_is_said_to_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(callback.FOLDER, raising=False)
    pruner.Pruner(tmp_path, NoPruning(), ACCURACY, 3).start()
    assert not caplog.records
    pruner.Pruner(tmp_path, Median(0, 3), ACCURACY, 3).start()
    assert [record.getMessage() for record in caplog.records] == [
        "pruning has no effect: it compares the runs of a sweep, and this run belongs to none (no -m)"
    ]
