"""Sums of updates in the place of the updates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.algorithms.shared.averaging import Params
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.global_rng import kept_globals
from fedlab_runner.core.parts import PartClients, PartsJob, Told
from fedlab_runner.core.round_metrics import RoundMetrics
from fedlab_runner.core.running_sums import RunningSums, sums_of
from fedlab_runner.core.update_guard import Guard
from fedlab_runner.core.updates import Updates
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop
from fedlab_runner.utils.errors import Diverged, UserError
from tests.helpers.kinds import by_kind, in_turns
from tests.helpers.toy import (
    ALGORITHMS,
    aggregator,
    algorithm,
    default_home,
    federation,
    few_rounds,
    home,
    local,
    normed,
    run,
    tensors,
)
from tests.helpers.work import Poisoned

SUMMED = [name for name in ALGORITHMS if algorithm(name).takes_sums()]
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 5, 12, 8, 7, 4, 5, 6, 2, 9], "cohort": 7, "std": 0.7, "build": normed}
ROUNDS = 4


def trained(name: str, sum_every: int | None, policy: str = "stop", **how: Any) -> tuple[Any, list[dict[str, float]]]:
    """The last State, and the metrics of each round."""
    fed = federation(**(LATE | {"home": default_home(name)} | how), rule=aggregator("mean", sum_every=sum_every))
    fed.trainer.guard = Guard(policy)
    method, state, metrics = few_rounds(name), None, []
    for round in range(ROUNDS):
        state = run(method, fed, 1, first=round, state=state, factor=0.9**round)
        metrics.append(fed.collect())
    return state, metrics


def test_who_takes_sums() -> None:
    assert {"fedavg", "fedprox", "fedsam", "fednova", "qfedavg", "fedexp", "fedbabu", "fedrep", "perfedavg"} <= set(
        SUMMED
    )
    assert not {"scaffold", "ditto", "feddle", "fedbuff", "dfml"} & set(SUMMED)
    assert algorithm("fedwalk", base="fedprox").takes_sums() and not algorithm("fedwalk", base="scaffold").takes_sums()


@pytest.mark.parametrize(("name", "sum_every"), in_turns(SUMMED, [1, 3, 4, 100]))
def test_a_cohort_in_parts_is_the_whole_cohort(name: str, sum_every: int) -> None:
    """Late clients, batch norm and parts at home included; and all metrics."""
    whole, parts = trained(name, None), trained(name, sum_every)
    near = 1e-7 if name == "fedft" else 1e-11  # the server's Adam divides by gradients that are nearly zero
    torch.testing.assert_close([*tensors(parts[0])], [*tensors(whole[0])], rtol=near, atol=near)
    for one, other in zip(whole[1], parts[1], strict=True):
        assert one == pytest.approx(other, rel=max(near, 1e-9), abs=1e-12)
    assert any(row["late/in_flight"] for row in whole[1]) and any(row["late/staleness_max"] for row in whole[1][1:])


@pytest.mark.parametrize("policy", ["drop", "zero", "clip"])
@pytest.mark.parametrize("how", [{}, {"home": home("head")}])
def test_updates_that_are_not_finite(policy: str, how: dict[str, Any]) -> None:
    how = how | {"executor": Poisoned(compile=False), "std": 0.0, "cohort": None}
    whole, parts = (trained("fedavg", each, policy, **how) for each in (None, 2))
    torch.testing.assert_close(parts[0].params, whole[0].params, rtol=1e-11, atol=1e-12)
    assert [row["updates/not_finite"] for row in parts[1]] == [0, 0, 1, 0]


@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("late_policy", ["delta", "model", "discard"])
def test_both_weightings_and_all_policies(weighting: str, late_policy: str) -> None:
    method = algorithm("fedavg", weighting=weighting, late_policy=late_policy, server_lr=0.7)
    whole, parts = (
        run(method, federation(**LATE, rule=aggregator("mean", sum_every=every)), ROUNDS) for every in (None, 2)
    )
    torch.testing.assert_close(parts.params, whole.params, rtol=1e-11, atol=1e-12)


def test_a_round_holds_the_models_of_a_part() -> None:
    """The executor is asked for no more."""
    asked = []

    class Counting(Loop):
        def train(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append(len(work.ids))
            return super().train(work)

    how: dict[str, Any] = {"executor": Counting(compile=False), "std": 0.0, "cohort": None}
    trained("fedavg", 5, **how)
    assert asked == [5, 5, 2] * ROUNDS


def test_nobody_in_time() -> None:
    _, metrics = trained("fedavg", 2, std=1e6)
    assert metrics[0]["late/arrived"] == 0 and metrics[0]["late/dispatched"] == 7
    sums, none = RunningSums(), torch.zeros(0, dtype=torch.int64)
    sums.add(Params(*sums_of([torch.zeros(0, 3)], none)[0]), none.new_zeros(2))
    (rows,), num_examples, clients = sums.means()
    found = Updates(Params(rows), clients, num_examples, clients, clients=clients)
    assert len(found) == 0 and torch.equal(found.mean(rows), torch.zeros(3)) and len(found.ages) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_a_sum_of_means(dtype: torch.dtype) -> None:
    """Of what is sent in fewer bits, or as whole numbers, in full."""
    rows, sizes, sums = (100 * torch.randn(5, 3)).to(dtype), torch.tensor([4, 1, 7, 2, 2]), RunningSums()
    for part in (slice(0, 2), slice(2, 5)):
        sums.add(*sums_of([rows[part]], sizes[part]))
    (means,), num_examples, clients = sums.means()
    found = Updates(Params(means), clients * 0 - 1, num_examples, clients * 0, clients=clients)
    torch.testing.assert_close(found.sum(means).double(), rows.double().sum(0), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.mean(means).double(), sizes.double() / 16 @ rows.double(), rtol=1e-4, atol=1e-3)
    assert len(found) == 5 and int(found.num_examples.sum()) == 16 and found.ages.tolist() == [0] * 5


@dataclass(frozen=True)
class FarLoop(Loop):
    """Carries out parts as processes elsewhere do, the last part first."""

    poisoned: int = -1  # the round in which a client's model is not finite

    def carry_out(self, job: PartsJob, clients: Sequence[PartClients]) -> Iterator[Told]:
        metrics, executor = RoundMetrics(), Poisoned(compile=False, round=self.poisoned)
        found = [job.carry_out(executor, metrics, each) for each in reversed(clients)]
        return reversed(found)


def test_a_whole_cohorts_updates_are_refused_where_parts_are_asked_for() -> None:
    fed = federation(rule=aggregator("mean", sum_every=2))
    fed.begin(0, 1.0)
    with pytest.raises(
        UserError, match=r"^aggregator\.sum_every would do nothing, .* round calls fed\.collect_updates"
    ):
        fed.collect_updates(fed.start_cohort(()), Params(torch.zeros(8, 2)))


@pytest.mark.parametrize("name", by_kind(SUMMED))
def test_parts_elsewhere_are_those_here_to_the_bit(name: str) -> None:
    none = {"home": None}
    here, there = trained(name, 3, **none), trained(name, 3, **none, executor=FarLoop(compile=False))
    assert all(torch.equal(a, b) for a, b in zip(tensors(here[0]), tensors(there[0]), strict=True))
    assert here[1] == there[1]


@kept_globals()
def test_each_part_elsewhere_draws_numbers_of_its_own() -> None:
    """The same ones in any process and at any time."""
    fed, drawn = federation(), list[float]()

    def update(cohort: Cohort) -> Params:
        drawn.append(float(torch.rand(())))
        return Params(torch.zeros(len(cohort), 2))

    job = PartsJob(update, (), fed.family, fed.client_data, fed.local, 0.1, 0, 0, False)
    for ids in ([0, 1], [2], [0, 1]):
        job.carry_out(Loop(compile=False), RoundMetrics(), PartClients(np.array(ids), np.zeros(len(ids), np.int64)))
    assert drawn[0] == drawn[2] != drawn[1]


def test_parts_that_need_this_process_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with values at home, with a bound on updates, and with a policy that treats one of them."""
    monkeypatch.setattr(PartsJob, "carry_out", None)
    far: dict[str, Any] = {"executor": FarLoop(compile=False)}
    trained("fedavg", 3, **far, home=home("head"))
    trained("fedavg", 3, **far, training=local(update_norm=1.0))
    trained("fedavg", 3, "drop", **far)
    with pytest.raises(TypeError):
        trained("fedavg", 3, **far)


def test_an_update_elsewhere_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(Diverged, match=r"diverged in round 2 \(update of client 3 not finite"):
        trained("fedavg", 3, executor=FarLoop(compile=False, poisoned=1), cohort=None, std=0.0)
