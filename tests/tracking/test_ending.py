"""The last lines of a run: short, the numbers that people look for first."""

from pathlib import Path

from fedlab_runner.tracking.ending import ending, judged_by


def test_test_metrics_and_means_of_cells_come_first_in_few_lines(tmp_path: Path) -> None:
    cells = [f"{cell}{rest}" for cell in ("client/own", "server/own") for rest in ("", "_std", "_worst", "_weighted")]
    final = dict.fromkeys(["late/arrived", "algorithm/gamma", "comm/upload_mb", "train/loss", *cells, "test/loss"], 0.5)
    final |= {f"late/staleness_count/{age}": 1 for age in range(9)} | {"test/accuracy": 0.25}
    summary = {"run_id": "fedavg-1", "metric": "test/accuracy", "rule": "best", "objective": 0.75, "rounds": 3}
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "curves.png").touch()
    lines = ending({**summary, "final": final}, tmp_path, 90)
    assert lines[0] == "fedavg-1 has finished 3 rounds in 90 s: 75.00 % (test/accuracy, best evaluation)"
    assert lines[1] == "the last round:"
    shown = [line.split()[0] for line in lines[1:] if line.startswith("  ") and "more" not in line]
    assert shown[:5] == ["test/accuracy", "test/loss", "client/own", "server/own", "train/loss"]
    assert len(lines) <= 15 and lines[-3:-1] == [
        f"  {len(final) - 10} more: {tmp_path}/summary.json",
        f"curves: {tmp_path}/plots/curves.png",
    ]
    assert lines[-1] == f"a page of the results: fedlab-report {tmp_path}"


def test_a_run_of_no_round_has_no_result(tmp_path: Path) -> None:
    summary = {"run_id": "fedavg-1", "metric": "test/accuracy", "rule": "best", "objective": None, "rounds": 0}
    lines = ending({**summary, "final": {}}, tmp_path / "my runs", None)
    assert lines[-1] == f"a page of the results: fedlab-report '{tmp_path}/my runs'", "a command to copy"
    assert lines[0] == "fedavg-1 has finished 0 rounds: no evaluation counts (test/accuracy, best evaluation)"


def test_the_rule_of_an_objective_in_words() -> None:
    assert judged_by("test/accuracy", "best_of_last") == "test/accuracy, best of the last evaluations"
    assert judged_by("", "") == ""
