"""Learning-rate schedules: their values at the ends, and what is refused."""

import json
import re

import pytest

from fedlab_runner.analyses.none import NoAnalysis
from fedlab_runner.config.build import build, conf_dir
from fedlab_runner.experiment.run import run_in
from fedlab_runner.lr_schedules.base import idle
from fedlab_runner.lr_schedules.constant import ConstantLR
from fedlab_runner.lr_schedules.cosine import CosineLR
from fedlab_runner.lr_schedules.drop_to import DropToLR
from fedlab_runner.lr_schedules.exponential import ExponentialLR
from fedlab_runner.lr_schedules.piecewise import PiecewiseLR
from fedlab_runner.lr_schedules.step import StepLR
from fedlab_runner.lr_schedules.warmup_cosine import WarmupCosineLR
from tests.helpers.composed import composed


@pytest.mark.parametrize(
    "schedule,factors",
    [
        (ConstantLR(), {0: 1.0, 10**6: 1.0}),
        (StepLR(10, 0.5), {0: 1.0, 9: 1.0, 10: 0.5, 19: 0.5, 20: 0.25, 100: 0.5**10}),
        (StepLR(1, 1.0), {0: 1.0, 50: 1.0}),
        (ExponentialLR(0.9), {0: 1.0, 1: 0.9, 2: 0.81, 10**6: 0.0}),
        (CosineLR(100, 0.0), {0: 1.0, 50: 0.5, 25: 0.8535534, 100: 0.0, 500: 0.0}),
        (CosineLR(100, 0.2), {0: 1.0, 50: 0.6, 100: 0.2, 101: 0.2}),
        (CosineLR(1, 0.0), {0: 1.0, 1: 0.0}),
        (PiecewiseLR([100], [1.0, 1e-3]), {0: 1.0, 99: 1.0, 100: 1e-3, 299: 1e-3}),
        (PiecewiseLR([2, 5], [0.1, 1.0, 0.01]), {0: 0.1, 1: 0.1, 2: 1.0, 4: 1.0, 5: 0.01, 6: 0.01}),
        (DropToLR(100, 1e-5, 1e-2), {0: 1.0, 99: 1.0, 100: 1e-3, 299: 1e-3}),
        (DropToLR(0, 1e-3, 1e-4), {0: 10.0, 5: 10.0}),
        (PiecewiseLR([], [0.5]), {0: 0.5, 9: 0.5}),
        (WarmupCosineLR(4, 24, 0.1), {0: 0.2, 1: 0.4, 3: 0.8, 4: 1.0, 14: 0.55, 24: 0.1, 99: 0.1}),
        (WarmupCosineLR(0, 10, 0.0), {0: 1.0, 5: 0.5, 10: 0.0}),
    ],
    ids=repr,
)
def test_values(schedule, factors):
    for round, factor in factors.items():
        value = schedule.factor(round)
        assert type(value) is float
        assert value == pytest.approx(factor, rel=1e-6, abs=1e-12), f"round {round}"


@pytest.mark.parametrize(
    "schedule", [CosineLR(50, 0.0), WarmupCosineLR(5, 50, 0.0), WarmupCosineLR(49, 50, 0.0)], ids=repr
)
def test_no_round_of_the_run_has_the_factor_0(schedule):
    factors = [schedule.factor(round) for round in range(50)]
    assert all(0 < factor <= 1 for factor in factors)
    peak = factors.index(1.0)
    assert factors == [*sorted(factors[:peak]), *sorted(factors[peak:], reverse=True)]  # up to 1, then down


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: StepLR(0, 0.5), "every must be >= 1, got 0"),
        (lambda: StepLR(5, 0.0), "decay must be in (0, 1], got 0.0"),
        (lambda: StepLR(5, float("nan")), "decay must be in (0, 1], got nan"),
        (lambda: ExponentialLR(1.5), "decay must be in (0, 1], got 1.5"),
        (lambda: ExponentialLR(-0.1), "decay must be in (0, 1], got -0.1"),
        (lambda: CosineLR(0, 0.0), "rounds must be >= 1, got 0"),
        (lambda: CosineLR(10, -0.1), "final must be in [0, 1], got -0.1"),
        (lambda: CosineLR(10, 1.1), "final must be in [0, 1], got 1.1"),
        (lambda: PiecewiseLR([100, 50], [1.0, 0.5, 0.1]), "boundaries must be >= 1 and increase, got [100, 50]"),
        (lambda: PiecewiseLR([0], [1.0, 0.5]), "boundaries must be >= 1 and increase, got [0]"),
        (lambda: PiecewiseLR([100], [1.0]), "factors must be 2, one more than boundaries, got [1.0]"),
        (lambda: PiecewiseLR([100], [1.0, 0.0]), "factors must be finite and > 0, got [1.0, 0.0]"),
        (lambda: PiecewiseLR([100], [1.0, float("inf")]), "factors must be finite and > 0, got [1.0, inf]"),
        (lambda: DropToLR(-1, 1e-5, 1e-2), "round must be >= 0, got -1"),
        (lambda: DropToLR(5, 0.0, 1e-2), "final_lr must be > 0, got 0.0"),
        (lambda: WarmupCosineLR(10, 10, 0.0), "warmup must be >= 0 and < rounds (10), got 10"),
        (lambda: WarmupCosineLR(-1, 10, 0.0), "warmup must be >= 0 and < rounds (10), got -1"),
        (lambda: WarmupCosineLR(0, 0, 0.0), "rounds must be >= 1, got 0"),
        (lambda: WarmupCosineLR(1, 10, 2.0), "final must be in [0, 1], got 2.0"),
    ],
)
def test_wrong_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize("choice", sorted(path.stem for path in (conf_dir() / "lr_schedule").glob("*.yaml")))
def test_every_choice_but_constant_changes_the_rate_in_a_run_of_the_default_length(choice):
    config = composed(f"lr_schedule={choice}", small=False)
    schedule = build(config).lr_schedule
    assert (len({schedule.factor(round) for round in range(config.rounds)}) > 1) == (choice != "constant")
    assert not idle(schedule, config.rounds)


@pytest.mark.parametrize(
    ("overrides", "at_first", "of_three", "factors"),
    [
        (["lr_schedule=step", "lr_schedule.every=2", "lr_schedule.decay=0.5"], True, False, [1, 1, 0.5]),
        (["lr_schedule=step", "lr_schedule.every=1", "lr_schedule.decay=0.5"], False, False, [1, 0.5, 0.25]),
        (["lr_schedule=piecewise"], True, True, [1, 1, 1]),
        (["lr_schedule=piecewise", "lr_schedule.factors=[0.5, 0.1]"], False, False, [0.5, 0.5, 0.5]),
        (["lr_schedule=constant"], False, False, [1, 1, 1]),
    ],
)
def test_a_schedule_that_leaves_the_rate_as_it_is_is_said(
    overrides, at_first, of_three, factors, tmp_path, caplog, monkeypatch
):
    """And each round has its rate, also in an analysis and after a resume."""
    monkeypatch.setattr(NoAnalysis, "observe", lambda self, memory, *how: (memory, {"analysis/lr": how[-1].lr}))
    for rounds, warned in ((2, at_first), (3, of_three)):  # the second run continues the first one
        caplog.clear()
        run_in(tmp_path, composed(f"rounds={rounds}", *overrides))
        said = f"lr_schedule has no effect in {rounds} rounds: in each of them the rate is local.lr;"
        assert (said in caplog.text) == warned
    _, *rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    for key in ("local/lr", "analysis/lr"):
        assert [row[key] for row in rows] == pytest.approx([each * composed().local.lr for each in factors])
    assert not idle(CosineLR(1, 0.0), 1), "one round has no schedule"
