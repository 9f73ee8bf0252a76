"""The numbers that papers report, from hand-made curves."""

import json
import math
import statistics
from typing import Any

import pytest

from fedlab_runner.tracking.summary import RULES, summarise

METRIC = "test/accuracy"


def curve(values: dict[int, float], metric: str = METRIC) -> list[dict[str, Any]]:
    """Rows of the rounds 0 to the last, those in `values` with the metric."""
    rows: list[dict[str, Any]] = []
    for round in range(max(values, default=0) + 1):
        rows.append({"round": round, "train/loss": 1.0 / (round + 1)})
        if round in values:
            rows[-1][metric] = values[round]
    return rows


def summary(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"metric": METRIC, "rule": "last", "last": 3, "every": 10, "rounds": 50}
    return summarise(rows, **(told | changes))


VALUES = {0: 0.99, 10: 0.5, 20: 0.9, 30: 0.6, 40: 0.8, 50: 0.7}


def test_the_four_rules() -> None:
    result = summary(curve(VALUES))
    assert result["best_of_last"] == 0.8
    assert result["mean_of_last"] == pytest.approx(0.7)
    assert result["std_of_last"] == pytest.approx(math.sqrt(0.02 / 3))
    assert (result["best"], result["best_round"]) == (0.9, 20), "the first model is not a result"
    assert result["last"] == 0.7
    assert (result["evaluations"], result["rounds"]) == (5, 50)
    for rule in RULES:
        assert summary(curve(VALUES), rule=rule)["objective"] == result[rule]


@pytest.mark.parametrize(("target", "round"), [(0.5, 10), (0.9, 20), (0.91, None)])
def test_a_value_as_good_as_the_target_reaches_it(target: float, round: int | None) -> None:
    assert summary(curve(VALUES), target=target)["rounds_to_target"] == round
    losses = {each: 1 - value for each, value in VALUES.items()}
    told = summary(curve(losses, "test/loss"), metric="test/loss", target=1 - target)
    assert told["rounds_to_target"] == round


def test_the_final_metrics_are_those_of_the_last_round() -> None:
    """What is absent there, as staleness is when nothing arrives, does not come from an earlier one."""
    rows = curve(VALUES)
    rows[40] |= {"late/staleness_mean": 0.3}
    rows[50] |= {"late/staleness_count/2": 3}
    assert summary(rows)["final"] == {METRIC: 0.7, "train/loss": 1 / 51}
    assert list(summary(rows)["final"]) == sorted(summary(rows)["final"])


def test_the_metrics_of_the_best_round_stand_beside_it() -> None:
    """FedWalk's Table 2: the training accuracy of the model with the best test accuracy."""
    rows = curve(VALUES)
    rows[20] |= {"server/train": 0.95, "late/staleness_count/2": 3}
    assert summary(rows)["at_best"] == {METRIC: 0.9, "server/train": 0.95, "train/loss": 1 / 21}
    assert summary([])["at_best"] == {}


def test_an_extended_run_counts_like_one_that_never_stopped() -> None:
    """Its old last round was evaluated only because it was the last."""
    extended = curve(VALUES | {45: 1.0, 60: 0.75})
    uninterrupted = curve(VALUES | {60: 0.75})
    assert summary(extended, rounds=60) == summary(uninterrupted, rounds=60)
    assert summary(curve({10: 0.1, 20: 0.2, 25: 0.3}), rounds=25)["last"] == 0.3


def test_fewer_evaluations_than_asked_for() -> None:
    result = summary(curve({10: 0.2, 20: 0.4}), last=5)
    assert (result["best_of_last"], result["best"], result["last"], result["evaluations"]) == (0.4, 0.4, 0.4, 2)
    assert result["mean_of_last"] == pytest.approx(0.3) and result["std_of_last"] == pytest.approx(0.1)
    assert summary(curve({10: 0.2}))["std_of_last"] == 0


@pytest.mark.parametrize("rows", [[], curve({0: 0.5})], ids=["no rows", "no evaluation"])
def test_no_evaluation_at_all(rows: list[dict[str, Any]]) -> None:
    result = summary(rows)
    assert all(math.isnan(result[rule]) for rule in (*RULES, "objective", "std_of_last"))
    assert result["best_round"] is None and result["evaluations"] == 0
    assert result["rounds"] == (0 if rows else -1)


def test_a_nan_spoils_the_mean_but_not_the_best() -> None:
    result = summary(curve({10: 0.2, 20: math.nan, 30: 0.1, 40: 0.3, 50: math.nan}), last=4)
    assert (result["best_of_last"], result["best"], result["best_round"]) == (0.3, 0.3, 40)
    assert all(math.isnan(result[key]) for key in ("mean_of_last", "std_of_last", "last"))
    assert summary(curve({10: math.nan, 20: 0.2, 30: 0.4}), last=2)["mean_of_last"] == pytest.approx(0.3)
    assert summary(curve({10: math.nan}))["at_best"] == {}


@pytest.mark.parametrize(("middle", "warned"), [(0.5, True), (0.6, False)])
def test_a_model_that_moved_and_came_back_has_changed(middle: float, warned: bool) -> None:
    rows = [{"round": round, METRIC: value} for round, value in enumerate([0.5, middle, 0.5])]
    assert ("warnings" in summary(rows, every=1, rounds=2)) == warned


def test_of_equals_the_first_is_best() -> None:
    assert summary(curve({10: 0.4, 20: 0.9, 30: 0.9, 40: 0.1}))["best_round"] == 20


def test_the_best_loss_is_the_smallest() -> None:
    result = summary(curve({10: 2.0, 20: 0.5, 30: 1.0}, "test/loss"), metric="test/loss")
    assert (result["best"], result["best_round"]) == (0.5, 20)


def test_the_mean_is_exact() -> None:
    """Summed without rounding errors: the same whatever the order of the additions."""
    values = {10 * (i + 1): value for i, value in enumerate([1e16, 1.0, -1e16, 1.0])}
    assert summary(curve(values), last=4)["mean_of_last"] == 0.5 == statistics.fmean(values.values())


def test_it_is_plain_json() -> None:
    result = summary(curve(VALUES))
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_rules_follow_the_metric() -> None:
    values = {10: 2.0, 20: 0.5, 30: 1.0, 40: math.nan, 50: 0.7}
    assert summary(curve(values, "test/loss"), metric="test/loss", rule="best_of_last")["objective"] == 0.7
    assert summary(curve(values, "test/loss"), metric="test/loss", last=4)["best_of_last"] == 0.5
    assert summary(curve(values))["best_of_last"] == 1.0
    spread = "client/own_std"
    assert summary(curve({10: 0.3, 20: 0.1}, spread), metric=spread)["best_of_last"] == 0.1
