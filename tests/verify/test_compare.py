"""Two runs of one config: when they are equal, when close, and where they differ."""

import math

import pytest

from fedlab_runner.verify.compare import DIFFERENT, EQUAL, WITHIN, compare

METRIC = "test/accuracy"  # of the run's objective
THERE = [{"round": 0, "test/accuracy": 0.1, "x": math.nan}, {"round": 1, "test/accuracy": 0.5, "train/loss": 0.002}]


def changed(round: int, **values: float) -> list[dict[str, float]]:
    return [row | values if row["round"] == round else row for row in THERE]


def test_equal_is_to_the_bit_and_a_missing_number_equals_another() -> None:
    found = compare(THERE, [dict(row) for row in THERE], METRIC, 1, 0.0)
    assert (found.verdict, found.values, found.largest) == (EQUAL, 6, None)
    nearly = compare(THERE, changed(1, **{"test/accuracy": math.nextafter(0.5, 1)}), METRIC, 1, 1e-9)
    assert nearly.verdict == WITHIN and nearly.largest and nearly.largest.size < 1e-15
    both = compare(THERE, changed(1, **{"test/accuracy": 0.25, "train/loss": 0.0021}), METRIC, 1, 0.5)
    assert both.largest and both.largest.metric == "test/accuracy"


@pytest.mark.parametrize(
    ("metric", "value", "tolerance", "verdict"),
    [
        ("test/accuracy", 0.509, 0.01, WITHIN),  # absolute: a share
        ("test/accuracy", 0.511, 0.01, DIFFERENT),
        ("test/accuracy", 0.75, 0.25, WITHIN),
        ("train/loss", 0.00201, 0.01, WITHIN),  # relative
        ("train/loss", 0.0021, 0.01, DIFFERENT),
        ("train/loss", 0.004, 0.5, WITHIN),  # to the larger one
        ("train/loss", math.nan, 0.5, DIFFERENT),
        ("train/loss", -0.002, 0.99, DIFFERENT),
    ],
)
def test_the_tolerance(metric: str, value: float, tolerance: float, verdict: str) -> None:
    found = compare(THERE, changed(1, **{metric: value}), METRIC, 1, tolerance)
    assert found.verdict == verdict
    assert found.largest and (found.largest.metric, found.largest.round) == (metric, 1)


def test_the_first_difference_is_told_with_both_values() -> None:
    here = [{"round": 0, "test/accuracy": 0.1, "x": 1.0}, {"round": 1, "test/accuracy": 0.25}]
    found = compare(THERE, here, METRIC, 1, 0.01)
    assert [(each.round, each.metric) for each in found.beyond] == [(0, "x"), (1, "test/accuracy"), (1, "train/loss")]
    assert str(found) == "DIFFERENT: 3 of 6 values, the first x in round 0: nan there, 1 here"
    assert str(found.beyond[1]) == "test/accuracy in round 1: 0.5 there, 0.25 here, 0.25 apart"
    assert str(found.beyond[2]) == "train/loss in round 1: 0.002 there, no value here"


def test_an_evaluation_that_was_not_due_does_not_count() -> None:
    """A run evaluates in its last round, and may have been made longer since."""
    bare = [THERE[0], {"round": 1}]
    assert compare(THERE, bare, METRIC, 2, 0.01).verdict == EQUAL
    assert compare(THERE, bare, METRIC, 1, 0.01).verdict == DIFFERENT
    assert compare(bare, THERE, METRIC, 2, 0.01).verdict == EQUAL


def test_a_due_value_of_the_objectives_metric_counts_that_the_bundle_lacks() -> None:
    """Without it the objective is that of other rounds. Another metric may be one of a newer version."""
    (first, last) = ({name: value for name, value in row.items() if name == "round"} for row in THERE)
    found = compare([THERE[0], last], THERE, METRIC, 1, 0.9)
    assert [str(each) for each in found.beyond] == ["test/accuracy in round 1: no value there, 0.5 here"]
    assert compare([THERE[0], last], THERE, "train/loss", 1, 0.9).beyond[0].metric == "train/loss"
    assert compare([first], THERE, "test/loss", 1, 0.0).verdict == EQUAL


def test_rounds_that_only_this_machine_has_do_not_count() -> None:
    assert compare(THERE[:1], THERE, METRIC, 1, 0.0).values == 3
