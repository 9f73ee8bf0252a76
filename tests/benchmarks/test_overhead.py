"""The measurement of what a round costs beside local training."""

import json
from pathlib import Path

import pytest

from benchmarks import overhead
from benchmarks.overhead import Cost, Setting


def test_a_run_is_measured_without_its_local_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{overhead.KINDS['fedavg']} num_clients=20 dataset.num_train=40 logger.mode=disabled"
    settings = {"few": Setting(words, 5, overhead.WARM_UP + 5), "other": Setting("not an override", 5, 1)}
    monkeypatch.setattr(overhead, "settings", lambda rounds: settings.items())
    monkeypatch.setattr("sys.argv", ["overhead", "--repeat", "2", "--only", "few", "--out", str(tmp_path / "out.json")])
    assert overhead.main() == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"].values()
    assert row["allowed_ms"] == pytest.approx(3.1)
    assert all(0 < row[key] < 1000 for key in ("wall_ms", "cpu_ms", "planning_cpu_ms"))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("few: ") and line.endswith(" ms cpu")


def test_a_checkpoint_costs_what_a_round_with_it_takes_longer() -> None:
    (kind, *_), round = overhead.SAVED, "fedavg, K=10"
    turns = {
        round: [Cost(2, 1, 0.5), Cost(4, 2, 0.7), Cost(3, 3, 0.6)],
        kind: [Cost(10, 9, 8)],
        f"{kind}, saved": [Cost(40, 9, 8)],
    }
    rows = overhead.found(turns, {name: 10 for name in turns}, interval=30)
    assert rows[round] == {"wall_ms": 3, "cpu_ms": 2, "planning_cpu_ms": 0.6, "allowed_ms": pytest.approx(3.2)}
    assert rows[kind] == {"checkpoint_ms": 30, "share": pytest.approx(0.001), "allowed_share": 0.05}
    assert overhead.shown(round, rows[round]).startswith("fedavg, K=10: 3.00 ms a round (2.00 ms cpu) of 3.20 allowed")
    assert overhead.shown(kind, rows[kind]).endswith("a checkpoint 30.0 ms, 0.10% of the default interval")
