"""The measurement of what a round costs beside local training."""

import pytest

from benchmarks import overhead
from benchmarks.overhead import Cost, Setting


def test_a_run_is_measured_without_its_local_training() -> None:
    words = f"{overhead.KINDS['fedavg']} num_clients=20 dataset.num_train=40 logger.mode=disabled"
    cost = overhead.cost_of(Setting(words, cohort=5, rounds=overhead.WARM_UP + 5))
    assert 0 < cost.cpu < 1000 and 0 < cost.wall < 1000 and 0 < cost.planning_cpu < 1000


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
