"""One client's update that is not finite: found, named, and handled as `nonfinite` says, by every algorithm alike."""

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_runner.checkpoints.store import CheckpointStore
from fedlab_runner.config.build import build as build_config
from fedlab_runner.config.build import fingerprint, run_id
from fedlab_runner.core.clock import RoundClock, Starts
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.update_guard import Guard, finite_rows
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop
from fedlab_runner.experiment.run import run_in
from fedlab_runner.participation.base import Participation
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.errors import Diverged, UserError
from tests.helpers.composed import composed, files
from tests.helpers.kinds import by_kind, in_turns
from tests.helpers.toy import (
    ALGORITHMS,
    ANY_OPTIMIZER,
    algorithm,
    federation,
    few_rounds,
    local,
    model_family,
    normed,
    run,
    tensors,
)
from tests.helpers.work import BAD, ROUND, Poisoned

NAN, INF = float("nan"), float("inf")
TRAINING = [name for name in ALGORITHMS if name != "center"]  # whose clients train
SERVED = [name for name in TRAINING if not algorithm(name).decentralized]


def guarded(policy: str, executor: Loop | None = None, **how: Any) -> Federation:
    fed = federation(**how, executor=executor or Poisoned(compile=False))
    fed.trainer.guard = Guard(policy)
    return fed


@pytest.mark.parametrize("name", by_kind(TRAINING))
def test_stop_names_client_and_round(name: str) -> None:
    with pytest.raises(Diverged, match=rf"diverged in round {ROUND + 1} \(update of client {BAD} not finite"):
        run(few_rounds(name), guarded("stop", participation=Everyone()), 4)


@pytest.mark.parametrize(("name", "policy"), in_turns(TRAINING, ["drop", "zero", "clip"]))
def test_the_run_goes_on_and_counts(name: str, policy: str) -> None:
    training = local(epochs=1, update_norm=1.0 if policy == "clip" else None)
    fed = guarded(policy, participation=Everyone(), training=training)
    built = few_rounds(name, **ANY_OPTIMIZER.get(name, {}))
    state = run(built, fed, ROUND)
    assert fed.collect()["updates/not_finite"] == 0
    state = run(built, fed, 1, first=ROUND, state=state)
    assert fed.collect()["updates/not_finite"] == 1 and np.isfinite(fed.collect()["train/loss"])
    state = run(built, fed, 2, first=ROUND + 1, state=state)
    assert fed.collect()["updates/not_finite"] == 0
    assert all(torch.isfinite(t).all() for t in tensors(state) if t.is_floating_point())


@pytest.mark.parametrize(("name", "std"), in_turns(SERVED, [0.0, 2.0]))
def test_drop_is_a_client_that_did_not_answer(name: str, std: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same State, to the bit, as where the client was asked and never began; it is busy for as long."""
    how: dict[str, Any] = {"participation": Everyone(), "std": std, "seed": 1}
    start = RoundClock.start
    dropped = guarded("drop", **how)
    one = run(few_rounds(name), dropped, 5)

    def without(self: RoundClock, round: int) -> Starts:
        starts = start(self, round)
        if round != ROUND:
            return starts
        assert BAD in starts.ids
        kept = starts.ids != BAD
        return Starts(starts.ids[kept], starts.due[kept], starts.asked)

    monkeypatch.setattr(RoundClock, "start", without)
    absent = guarded("drop", Loop(compile=False), **how)
    other = run(few_rounds(name), absent, 5)
    assert all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))
    assert dropped.collect() == absent.collect()


def test_zero_is_a_client_that_did_not_move() -> None:
    fed = guarded("zero")
    fed.begin(ROUND, 1.0)
    x = fed.family.init(0)
    cohort = fed.start_cohort((x,))
    y, whole = cohort.train(x), federation()
    whole.begin(ROUND, 1.0)
    others = whole.start_cohort((x,)).train(x)
    bad = cohort.client_ids == BAD
    assert torch.equal(y[bad], x.expand(1, -1)) and torch.equal(y[~bad], others[~bad])
    arrivals = fed.collect_updates(cohort, Update(y - x))
    assert len(arrivals) == len(cohort) and not arrivals.upload.rows[bad].any()


def values(params: int, statistics: int) -> ModelFamily:
    """The family of models of so many parameters and statistics."""

    class Values(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.zeros(params))
            self.register_buffer("running_mean", torch.zeros(statistics))

    return model_family(Values)


@pytest.mark.parametrize("start", [torch.zeros(4), torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])])
def test_clip_keeps_what_is_finite_within_the_bound(start: torch.Tensor) -> None:
    """Values that are not finite are those of the start, and so are the statistics behind the parameters."""
    top = torch.finfo(torch.float32).max
    for huge in (3.0, 1e30, top):
        y = start + torch.tensor([[NAN, huge, INF, 5.0], [0.3, 0.4, 0.0, 5.0]])
        left, good = Guard("clip").trained(np.arange(2), lambda: start, y, torch.zeros(2), values(3, 1), 0.5, float)
        change = left - start
        assert good.tolist() == [False, True]
        torch.testing.assert_close(change, torch.tensor([[0.0, 0.5, 0.0, 0.0], [0.3, 0.4, 0.0, 5.0]]))
    y = start.expand(2, -1).clone()
    left, good = Guard("clip").trained(
        np.arange(2), lambda: start, y, torch.tensor([NAN, 1.0]), values(3, 1), 0.5, float
    )
    assert torch.equal(left, y) and good.tolist() == [False, True], "only the loss was not finite"


def test_clip_needs_a_bound() -> None:
    with pytest.raises(
        UserError, match=r"^nonfinite must be stop, drop or zero where local\.update_norm is null, got "
    ):
        build_config(composed("nonfinite=clip"))
    build_config(composed("nonfinite=clip", "local.update_norm=1"))


def test_a_difference_too_large_for_the_type_is_clipped_too() -> None:
    top = torch.finfo(torch.float32).max
    start, y = torch.full((3,), -top), torch.full((1, 3), top)
    left, _ = Guard("stop").trained(np.arange(1), lambda: start, y, torch.zeros(1), values(3, 0), 1.0, float)
    assert torch.equal(left, start.unsqueeze(0))


@pytest.mark.parametrize("name", ["dec_fedavg", "dfml", "fml", "heterofl", "def_kt"])
def test_without_a_server_a_client_meets_with_the_model_that_it_had(name: str) -> None:
    states = [run(few_rounds(name), guarded(policy, participation=Everyone()), 5) for policy in ("drop", "zero")]
    assert all(torch.equal(a, b) for a, b in zip(*map(tensors, states), strict=True))


def test_mutual_learning_that_diverges_names_the_aggregator() -> None:
    """Trained on its examples with an optimiser of its own, after what the executor did."""
    built = algorithm("dfml", epochs=2, fixed_aggregator=7)
    fed = federation(training=local(lr=1.0))
    fed.trainer.guard = Guard("drop")
    state = built.init(fed)
    fed.begin(0, 1.0)
    fed.lr = 1e308  # local training is kept from it by the executor below

    class Still(Loop):
        def train(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
            return work.start.clone(), torch.zeros(len(work.ids), dtype=work.start.dtype)

    fed.trainer.executor = Still(compile=False)
    after = built.round(state, fed)
    assert fed.collect()["updates/not_finite"] == 1
    assert all(torch.equal(a, b) for a, b in zip(tensors(after.models), tensors(state.models), strict=True))
    fed.trainer.guard = Guard("stop")
    with pytest.raises(Diverged, match=r"update of client 7 not finite, from mutual learning"):
        built.round(state, fed)


# What counts as not finite


class Update(NamedTuple):
    rows: torch.Tensor


@dataclass(frozen=True)
class Everyone(Participation):
    """All clients that are idle."""

    def check(self, num_clients: int) -> None: ...

    def cohort(self, num_clients: int) -> int:
        return num_clients - 1  # without a server one aggregates

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int, round: int) -> np.ndarray:
        return idle


@pytest.mark.parametrize("into", ["model", "loss"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_each_kind_of_value(value: float, into: str) -> None:
    with pytest.raises(Diverged, match=rf"client {BAD} not finite"):
        run(algorithm("fedavg"), guarded("stop", Poisoned(False, value, into)), 4)


@pytest.mark.parametrize("value", [NAN, INF, -1e-3])
def test_statistics_of_batch_norm_are_named(value: float) -> None:
    """The last value of a model is a running variance."""

    class Odd(Poisoned):
        def train(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
            y, losses = Loop.train(self, work)
            y[work.ids == BAD, -1] = value if work.round == ROUND else 1.0
            return y, losses

    fed = guarded("stop", Odd(compile=False), build=normed, participation=Everyone())
    found = (
        rf"round {ROUND + 1} \(update of client {BAD} not finite, in batch norm's statistics, or with a variance below"
    )
    with pytest.raises(Diverged, match=found):
        run(algorithm("fedbuff"), fed, 4)


def test_late_updates_that_are_not_finite_never_arrive() -> None:
    fed = guarded("drop", std=2.0, participation=Everyone(), seed=1)
    built = algorithm("fedbuff")
    state = run(built, fed, ROUND + 1)
    flights = fed.state_dict()["in_flight"]
    assert BAD not in {f.client for due in flights.values() for f in due if f.dispatched == ROUND}
    assert all(torch.isfinite(t).all() for due in flights.values() for f in due for t in f.upload)
    run(built, fed, 5, first=ROUND + 1, state=state)


def test_an_upload_that_is_not_finite_though_the_model_is() -> None:
    for policy in ("drop", "zero", "clip"):
        fed = guarded(policy, Loop(compile=False))
        fed.begin(0, 1.0)
        cohort = fed.start_cohort(())
        rows = torch.ones(len(cohort), 4)
        rows[cohort.client_ids == BAD, 2] = INF
        arrivals = fed.collect_updates(cohort, Update(rows))
        assert BAD not in arrivals.ids.tolist() and len(arrivals) == len(cohort) - 1
        assert fed.collect()["updates/not_finite"] == 1


def test_nobody_answers() -> None:
    fed = guarded("drop")
    fed.begin(0, 1.0)
    cohort = fed.start_cohort(())
    assert len(fed.collect_updates(cohort, Update(torch.full((len(cohort), 4), NAN)))) == 0
    assert fed.collect()["updates/not_finite"] == len(cohort) and "train/loss" not in fed.collect()


def test_large_values_are_not_mistaken() -> None:
    """Whose sum is too large for the type."""
    top = torch.finfo(torch.float32).max
    rows = torch.tensor([[top, top], [-top, -top], [top, NAN], [INF, -INF]])
    assert finite_rows([rows]).tolist() == [True, True, False, False]
    assert finite_rows([rows, torch.tensor([1.0, NAN, 1.0, 1.0])]).tolist() == [True, False, False, False]
    assert finite_rows([torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 0)]).tolist() == [True, True]


def test_warnings_name_whom_and_end(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("drop")
    for round in range(20):
        guard.begin(round)
        rows = torch.full((7, 3), NAN)
        guard.answered(np.arange(7), [rows])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10 and lines[0].startswith("round 1: updates of clients 0, 1, 2, 3, 4 and 2 more not finite")
    assert "from now on" in lines[-1] and "from now on" not in lines[-2]


def test_a_client_that_trains_several_times_in_a_round_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("drop")
    for round in range(2):
        guard.begin(round)
        for ids in ([3, 5], [5], [5, 6]):
            guard.answered(np.array(ids), [torch.full((len(ids), 3), NAN)])
    named = ["clients 3, 5", "clients 5, 6"]
    assert [re.findall("clients [0-9, ]+[0-9]", record.getMessage()) for record in caplog.records] == [
        [each] for each in 2 * named
    ]


# Update clipping


@pytest.mark.parametrize("build", [None, normed], ids=["plain", "batch_norm"])
def test_an_update_is_no_longer_than_its_bound(build: Any) -> None:
    how = {} if build is None else {"build": build}
    free, bound = federation(**how), federation(**how, training=local(update_norm=0.3))
    x, p = free.family.init(0), free.family.num_params
    for fed in (free, bound):
        fed.begin(0, 1.0)
    y, z = (fed.start_cohort((x,)).train(x) for fed in (free, bound))
    lengths = (y - x)[:, :p].norm(dim=1)
    assert 0 < int((lengths > 0.3).sum()) < len(lengths)
    factor = (0.3 / lengths).clamp(max=1).unsqueeze(1)
    torch.testing.assert_close(z[:, :p], x[:p] + factor * (y - x)[:, :p], rtol=0, atol=1e-12)
    assert torch.equal(z[lengths <= 0.3], y[lengths <= 0.3]) and torch.equal(z[:, p:], y[:, p:])
    assert bound.collect()["updates/clipped"] == int((lengths > 0.3).sum())
    assert "updates/clipped" not in free.collect()


def test_clipping_takes_values_whose_square_is_too_large() -> None:
    guard, x = Guard("stop"), torch.zeros(3)
    y = torch.tensor([[3e30, 4e30, 9.0], [0.3, 0.4, 9.0]])
    clipped, _ = guard.trained(np.arange(2), lambda: x, y.clone(), torch.zeros(2), values(2, 1), 1.0, float)
    torch.testing.assert_close(clipped, torch.tensor([[0.6, 0.8, 9.0], [0.3, 0.4, 9.0]]))
    each_its_own, _ = guard.trained(np.arange(2), lambda: y, y + 1, torch.zeros(2), values(2, 1), 1.0, float)
    assert torch.isfinite(each_its_own).all()


@pytest.mark.parametrize("name", by_kind(TRAINING))
def test_every_algorithm_can_clip_updates(name: str) -> None:
    """And learns nothing where the bound is next to nothing: what moves clients is bounded, whatever they do."""
    seen = []

    class Watching(Loop):
        def train(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(len(work.ids))
            return super().train(work)

    fed = federation(training=local(update_norm=1e-9), executor=Watching(compile=False), participation=Everyone())
    run(algorithm(name, **ANY_OPTIMIZER.get(name, {})), fed, 2)
    assert sum(seen) and 0 < fed.collect()["updates/clipped"] <= fed.num_clients, "however often a client trains"


# Whole runs


def poison(patch: pytest.MonkeyPatch) -> None:
    """One client of one round returns a value that is not finite."""
    train = Loop.train

    def poisoned(self: Loop, work: Work) -> Any:
        y, losses = train(self, work)
        y[work.ids == BAD if work.round == ROUND else slice(0, 0), 0] = NAN
        return y, losses

    patch.setattr(Loop, "train", poisoned)


STOPPED = ("algorithm=fedavg", "rounds=8", "executor=loop", "delay.std=2", "participation.cohort_size=12")
DIVERGED = rf"round {ROUND + 1} .*client {BAD} "


def test_a_stopped_run_is_checkpointed_before_the_round_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = composed(*STOPPED)
    with monkeypatch.context() as patch, pytest.raises(Diverged, match=DIVERGED):
        poison(patch)
        run_in(tmp_path / "stopped", cfg)
    saved = CheckpointStore(tmp_path / "stopped", 2).load(fingerprint(cfg))
    assert saved is not None and saved[0] == ROUND
    run_in(tmp_path / "stopped", cfg)
    run_in(tmp_path / "whole", cfg)
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")


def test_a_stopped_run_goes_on_under_another_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had had it from the beginning; not the other way round, and not under other numbers."""
    poison(monkeypatch)
    other = composed(*STOPPED, "nonfinite=drop")
    run_in(tmp_path / "whole", other)
    with pytest.raises(Diverged, match=DIVERGED):
        run_in(tmp_path / "stopped", composed(*STOPPED))
    with pytest.raises(UserError, match=r"is of another config: local\.lr .*, nonfinite \(stop there, drop here\)"):
        run_in(tmp_path / "stopped", composed(*STOPPED, "nonfinite=drop", "local.lr=0.5"))
    run_in(tmp_path / "stopped", other)
    rows = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "stopped")
    ]
    counts = [[row.pop("updates/not_finite", 0) for row in each] for each in rows]
    assert counts[0] == counts[1] and sum(counts[0]) == 1
    assert rows[0] == rows[1] and len(rows[0]) == 9
    with pytest.raises(UserError, match=r"is of another config: nonfinite \(drop there, stop here\)"):
        run_in(tmp_path / "stopped", composed(*STOPPED))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_overflow_is_found_in_each_precision(precision: str, tmp_path: Path) -> None:
    """bfloat16 has float32's range, and float16 is not a choice."""
    with pytest.raises(Diverged, match=r"update(s)? of client"):
        run_in(tmp_path, composed("algorithm=fedavg", "rounds=4", f"precision={precision}", "local.lr=1e38"))


def test_a_run_survives_what_it_clips(tmp_path: Path) -> None:
    overrides = ("algorithm=fedavg", "rounds=3", "delay=none", "local.lr=1e38", "nonfinite=clip", "local.update_norm=1")
    run_in(tmp_path, composed(*overrides))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][1:]
    assert sum(row["updates/not_finite"] for row in rows) >= 1 and [row["late/arrived"] for row in rows] == [3, 3, 3]
    assert rows[-1]["test/loss"] < 10


def test_a_run_survives_what_it_drops_and_clips(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where most updates overflow and the others are huge, which only a bound on them catches."""
    overrides = ("algorithm=fedavg", "rounds=3", "delay=none", "local.lr=1e38", "nonfinite=drop", "local.update_norm=1")
    with caplog.at_level(logging.WARNING):
        run_in(tmp_path, composed(*overrides))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][1:]
    lost = [row["updates/not_finite"] for row in rows]
    assert sum(lost) >= 1 and [row["late/arrived"] for row in rows] == [3 - n for n in lost]
    assert [row["updates/clipped"] for row in rows] == [3 - n for n in lost]
    assert rows[-1]["test/loss"] < 10
    assert sum("nonfinite=drop" in record.getMessage() for record in caplog.records) == sum(n > 0 for n in lost)


def test_another_policy_is_another_run() -> None:
    assert run_id(composed()).endswith(digest(fingerprint(composed())))
    for change in ("nonfinite=drop", "local.update_norm=1"):
        assert run_id(composed(change)) != run_id(composed())
