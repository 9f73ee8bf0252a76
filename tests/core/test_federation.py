"""Updates on their way: order, staleness, conservation, bytes, and a saved federation that continues."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlab_runner.aggregators.median import CoordinateMedian
from fedlab_runner.checkpoints.state_packing import pack
from fedlab_runner.core.aggregation import Aggregation
from fedlab_runner.core.clock import RoundClock
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.round_metrics import RoundMetrics
from fedlab_runner.core.running_sums import sums_of
from fedlab_runner.core.updates import Updates
from fedlab_runner.delays.constant import ConstantDelay
from fedlab_runner.delays.none import NoDelay
from fedlab_runner.participation.over_selection import OverSelection
from fedlab_runner.participation.uniform import UniformParticipation
from tests.helpers.toy import EQUAL, aggregator, algorithm, federation, home, run, server_optimizer


class Upload(NamedTuple):
    who: Tensor  # [K, 2]: the client and its round of dispatch
    scalar: Tensor  # [K]


def step(fed: Federation, round: int) -> Updates[Upload]:
    fed.begin(round, 1.0)
    cohort = fed.start_cohort((torch.zeros(10),))
    cohort.final_loss = cohort.ids.double()
    who = torch.stack([cohort.ids, torch.full_like(cohort.ids, round)], 1)
    return fed.collect_updates(cohort, Upload(who, cohort.ids.double()))


def test_updates_arrive_once_when_due_and_oldest_first() -> None:
    fed, dispatched, arrived = federation([3] * 20, cohort=5, std=4.0), 0, 0
    seen: set[tuple[int, int]] = set()
    for round in range(40):
        arrivals = step(fed, round)
        metrics = fed.collect()
        dispatched, arrived = dispatched + int(metrics["late/dispatched"]), arrived + int(metrics["late/arrived"])
        assert dispatched == arrived + metrics["late/in_flight"]
        pairs = [tuple(pair) for pair in arrivals.upload.who.tolist()]
        assert not seen & set(pairs)
        seen |= set(pairs)
        assert [client for client, _ in pairs] == arrivals.ids.tolist() == arrivals.upload.scalar.long().tolist()
        assert [round - sent for _, sent in pairs] == arrivals.staleness.tolist()
        assert sorted(pairs, key=lambda pair: pair[1]) == pairs, "oldest dispatch first"
        assert arrivals.num_examples.tolist() == [3] * len(arrivals)
        counts = {k: v for k, v in metrics.items() if k.startswith("late/staleness_count/")}
        assert sum(counts.values()) == len(arrivals)
    assert arrived > 100 and max(round - sent for _, sent in seen) >= 0


def test_nothing_is_late_without_delay() -> None:
    arrivals = step(federation(EQUAL), 0)
    assert len(arrivals) == 4 and not arrivals.staleness.any()
    assert arrivals.upload.who[:, 0].tolist() == arrivals.ids.tolist()


def test_a_round_without_arrivals_has_empty_tensors_of_the_right_shape() -> None:
    fed = federation(EQUAL)
    fed._clock._delays = ConstantDelay(rounds=2, draw="client").sample(None, range(4))  # type: ignore[arg-type]
    arrivals = step(fed, 0)
    assert len(arrivals) == 0 and arrivals.upload.who.shape == (0, 2) and arrivals.upload.scalar.shape == (0,)
    assert arrivals.mean(arrivals.upload.who.double()).tolist() == [0, 0]
    assert "late/staleness_mean" not in fed.collect()
    assert len(step(fed, 1)) == 0 and len(step(fed, 2)) == 4


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize("sum_every", [None, 3])
@pytest.mark.parametrize(
    ("kind", "size"), [(torch.float64, 4), (torch.float32, 4), (torch.bfloat16, 2), (torch.int8, 1), (torch.bool, 1)]
)
def test_bytes_are_those_of_the_payload(kind: torch.dtype, size: int, sum_every: int | None, rounds: int) -> None:
    """10 + 5 values down and 2 + 1 up for each of four clients, on time or late: 4 bytes a value, or fewer."""
    fed = federation(EQUAL, rule=aggregator("mean", sum_every=sum_every))
    fed._clock._delays = ConstantDelay(rounds=rounds, draw="client").sample(None, range(4))  # type: ignore[arg-type]
    fed.begin(0, 1.0)
    cohort = fed.start_cohort((torch.zeros(10, dtype=kind), torch.zeros(5)))
    assert fed.collect()["comm/download_mb"] == pytest.approx(4 * (10 * size + 5 * 4) / 1e6)
    for round in range(1 + rounds):
        if round:
            fed.begin(round, 1.0)
            cohort = fed.cohort(cohort.client_ids[:0])
        fed.deliver(cohort, lambda part: Upload(torch.ones(len(part), 2).to(kind), part.ids.double()))
    assert fed.collect()["comm/upload_mb"] == pytest.approx(4 * (2 * size + 4) / 1e6)
    assert fed.collect()["cost/server_gflops"] == pytest.approx(2 * 4 * 3 / 1e9)


def test_clients_that_are_asked_in_vain_receive_the_model_too() -> None:
    """Five of eight clients; each receives 10 values and as many more as its number says."""
    fed = federation(participation=OverSelection(2, 2.5, 0))
    fed.begin(0, 1.0)
    fed.start_cohort((torch.zeros(10),), np.arange(8))
    asked = RoundClock(np.ones(8, np.int64), UniformParticipation(5, None, 0), NoDelay(draw="client"), 0).start(0).ids
    assert fed.collect()["comm/download_mb"] == pytest.approx(4 * (5 * 10 + asked.sum()) / 1e6)


def test_means_are_weighted_by_examples_or_uniform() -> None:
    arrivals = Updates((torch.zeros(2),), torch.tensor([0, 1]), torch.tensor([1, 3]), torch.tensor([0, 0]))
    rows = torch.tensor([[0.0, 4.0], [8.0, 0.0]])
    assert arrivals.mean(rows).tolist() == [6, 1] and arrivals.mean(rows, uniform=True).tolist() == [4, 2]


@pytest.mark.parametrize("kind", [torch.int8, torch.int64, torch.float16, torch.bfloat16])
def test_means_of_quantised_updates_are_in_full(kind: torch.dtype) -> None:
    sizes, rows = torch.tensor([70_000, 1]), torch.tensor([[120, 3], [120, 5]])
    expected = (sizes / sizes.sum()).float() @ rows.float()
    given = Upload(rows, sizes), torch.tensor([0, 1]), sizes, torch.tensor([0, 0])
    means = Updates(*given).mean(rows.to(kind))
    assert Updates(*given, Aggregation(CoordinateMedian(), RoundMetrics())).mean(rows.to(kind)).tolist() == [120, 4]
    sums, counts = sums_of((rows.to(kind),), sizes)
    for found in (means, sums[0][0] / counts[0]):
        torch.testing.assert_close(found, expected)


def test_arrivals_can_be_selected() -> None:
    fed = federation([3] * 20, cohort=8, std=2.0)
    arrivals = [step(fed, round) for round in range(4)][-1]
    fresh = arrivals.select(arrivals.staleness == 0)
    assert 0 < len(fresh) < len(arrivals) and (fresh.upload.who[:, 1] == 3).all() and type(fresh.upload) is Upload


def test_a_saved_federation_goes_on_with_clients_in_flight() -> None:
    first, second = (federation([3] * 20, cohort=5, std=4.0) for _ in range(2))
    for round in range(9):
        step(first, round)
    saved: dict[str, Any] = pack(first.state_dict())
    assert first.collect()["late/in_flight"] > 0
    second.load_state_dict(saved)
    for round in range(9, 25):
        a, b = step(first, round), step(second, round)
        assert a.upload.who.tolist() == b.upload.who.tolist() and a.staleness.tolist() == b.staleness.tolist()
        assert first.arrived_losses == second.arrived_losses == a.ids.tolist()


def test_a_snapshot_does_not_change_with_the_run() -> None:
    """As a round that fails leaves it for the checkpoint."""
    fed = federation([3] * 20, cohort=5, std=4.0, home=home("head"), optimizer=server_optimizer("adam"))
    state = run(algorithm("fedavg"), fed, 2)
    snapshot = fed.state_dict()
    before = repr(snapshot)
    run(algorithm("fedavg"), fed, 5, first=2, state=state)
    assert repr(snapshot) == before
