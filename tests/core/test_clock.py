"""The clients that start and the updates that arrive: Feddle's asynchronous simulation (section 3)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedlab_runner.core.clock import Delay, Participation, RoundClock
from fedlab_runner.delays.constant import ConstantDelay
from fedlab_runner.delays.half_normal import HalfNormalDelay
from fedlab_runner.delays.none import NoDelay
from fedlab_runner.participation.fixed import FixedParticipation
from fedlab_runner.participation.over_selection import OverSelection
from fedlab_runner.participation.uniform import UniformParticipation


def clock(participation: Participation, delay: Delay | None = None, n: int = 30, seed: int = 0) -> RoundClock:
    return RoundClock(np.ones(n, np.int64), participation, delay or NoDelay(draw="client"), seed)


@pytest.mark.parametrize("draw", ["client", "dispatch"])
def test_a_busy_client_is_not_asked_again(draw: str) -> None:
    time, busy_until = clock(UniformParticipation(8, None, 0), HalfNormalDelay(std=6.0, draw=draw)), np.full(30, -1)
    asked = 0
    for round in range(60):
        starts = time.start(round)
        assert len(set(starts.ids.tolist())) == len(starts.ids)
        assert (busy_until[starts.ids] < round).all(), "not even in the round in which its update arrives"
        assert (starts.due >= round).all()
        busy_until[starts.ids] = starts.due
        idle_before = int((busy_until[np.setdiff1d(np.arange(30), starts.ids)] < round).sum()) + len(starts.ids)
        assert len(starts.ids) == min(8, idle_before), "as many as asked for, or all that are idle"
        asked += len(starts.ids)
    assert asked < 60 * 8, "some round had fewer idle clients than wanted, or the test shows nothing"


def test_delays_are_drawn_once_per_client_or_at_each_dispatch() -> None:
    def delays(draw: str) -> dict[int, set[int]]:
        seen: dict[int, set[int]] = {}
        time = clock(UniformParticipation(10, None, 0), HalfNormalDelay(std=3.0, draw=draw))
        for round in range(80):
            starts = time.start(round)
            for client, due in zip(starts.ids.tolist(), starts.due.tolist(), strict=True):
                seen.setdefault(client, set()).add(due - round)
        return seen

    assert all(len(values) == 1 for values in delays("client").values())
    assert any(len(values) > 1 for values in delays("dispatch").values())


@dataclass(frozen=True)
class Shifts(Participation):
    """A trace of availability: client i is there in the rounds r with r % 3 == i % 3."""

    def check(self, num_clients: int) -> None: ...

    def cohort(self, num_clients: int) -> int:
        return 2

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int, round: int) -> np.ndarray:
        there = idle[idle % 3 == round % 3]
        return rng.permutation(there)[: self.cohort(num_clients)]


def test_a_participation_may_depend_on_the_round() -> None:
    """Also where a run foresees its rounds, continues, and has no server."""
    time, resumed = (clock(Shifts(), ConstantDelay(rounds=1, draw="client")) for _ in range(2))
    foreseen = [starts.ids.tolist() for starts in time.ahead(0, 12)]
    first = [time.start(round).ids.tolist() for round in range(6)]
    resumed.load_state_dict(time.state_dict())
    assert [*first, *(resumed.start(round).ids.tolist() for round in range(6, 12))] == foreseen
    for round, ids in enumerate(foreseen):
        alone = clock(Shifts()).sample(round, np.arange(30)).tolist()
        assert len(ids) == len(alone) == 2 and all(client % 3 == round % 3 for client in (*ids, *alone))


def test_cohorts_and_delays_depend_on_the_seed_alone() -> None:
    def course(seed: int) -> list[tuple[list[int], list[int]]]:
        time = clock(UniformParticipation(5, None, 0), HalfNormalDelay(std=3.0, draw="client"), seed=seed)
        return [(s.ids.tolist(), s.due.tolist()) for s in map(time.start, range(20))]

    assert course(0) == course(0) != course(1)


def test_all_clients_busy_is_a_round_without_dispatch() -> None:
    time = clock(UniformParticipation(30, None, 0), ConstantDelay(rounds=3, draw="client"))
    assert [len(time.start(round).ids) for round in range(9)] == [30, 0, 0, 0, 30, 0, 0, 0, 30]


def test_a_fraction_counts_all_clients() -> None:
    assert len(clock(UniformParticipation(None, 0.2, 0)).start(0).ids) == 6
    assert len(clock(UniformParticipation(None, 0.001, 0)).start(0).ids) == 1, "at least one"
    assert len(clock(UniformParticipation(None, 0.29, 0)).start(0).ids) == 9, "to the nearest"
    time = clock(UniformParticipation(None, 0.5, 0), ConstantDelay(rounds=1, draw="client"))
    assert [len(time.start(round).ids) for round in range(3)] == [15] * 3, "the busy ones too"


def test_a_fixed_list_is_asked_in_its_order_when_idle() -> None:
    time = clock(FixedParticipation([4, 2, 9], 0), ConstantDelay(rounds=1, draw="client"))
    assert [time.start(round).ids.tolist() for round in range(3)] == [[4, 2, 9], [], [4, 2, 9]]


@pytest.mark.parametrize("participation", [UniformParticipation(8, None, 0), OverSelection(8, 1.0, 0)])
def test_the_order_of_sampling_is_random(participation: Participation) -> None:
    """Ties of over-selection go by it: no client may come first by its number."""
    ids = np.array([clock(participation, seed=seed).start(0).ids for seed in range(300)])
    assert (np.abs(ids.mean(0) - 14.5) < 2).all(), "each place has each of 30 clients as often"


def test_over_selection_keeps_the_first_to_report() -> None:
    delay = HalfNormalDelay(std=10.0, draw="client")
    time = clock(OverSelection(cohort_size=4, factor=2.0, held_out_clients=0), delay)
    delays = clock(UniformParticipation(30, None, 0), delay).start(0)
    known = dict(zip(delays.ids.tolist(), delays.due.tolist(), strict=True))
    starts = time.start(0)
    asked = RoundClock(np.ones(30, np.int64), UniformParticipation(8, None, 0), NoDelay(draw="client"), 0).start(0).ids
    assert len(starts.asked) == 8 and (starts.due == 0).all() and set(starts.ids) <= set(asked)
    assert starts.ids.tolist() == starts.asked[np.isin(starts.asked, starts.ids)].tolist(), "in the order of sampling"
    slowest_kept = max(known[client] for client in starts.ids.tolist())
    assert all(known[client] >= slowest_kept for client in set(asked.tolist()) - set(starts.ids.tolist()))
    assert len(time.start(1).ids) == 4, "those left out are idle again"
    assert len(time.sample(0, np.arange(30))) == 4, "without a server too"
    first, _ = OverSelection(10, 2.0, 0).reporting(np.arange(20), np.arange(20) % 3)
    assert first.tolist() == [0, 1, 3, 4, 6, 7, 9, 12, 15, 18], "of equals the first that were asked"


def test_over_selection_asks_as_many_as_the_decimals_say() -> None:
    """1.1 * 50 is 55.00000000000001 in floats."""
    assert len(clock(OverSelection(cohort_size=50, factor=1.1, held_out_clients=0), n=55).start(0).asked) == 55
    assert len(clock(OverSelection(cohort_size=3, factor=1.5, held_out_clients=0)).start(0).asked) == 5


HOLDING_OUT = {
    "uniform": lambda held_out: UniformParticipation(8, None, held_out),
    "over_selection": lambda held_out: OverSelection(8, 1.5, held_out),
    "fixed": lambda held_out: FixedParticipation([3, 28, 11], held_out),
}


@pytest.mark.parametrize("policy", HOLDING_OUT)
@pytest.mark.parametrize(("asked", "count"), [(0, 0), (0.0, 0), (7, 7), (1, 1), (0.29, 9), (0.001, 1)])
def test_clients_that_are_held_out_are_drawn_by_the_seed_and_never_asked(policy: str, asked: Any, count: int) -> None:
    times = [
        clock(HOLDING_OUT[policy](asked), HalfNormalDelay(std=1.0, draw="dispatch"), seed=seed) for seed in (0, 0, 1)
    ]
    out = times[0].held_out
    assert len(out) == count and (np.diff(out) > 0).all() and out.dtype == np.int64
    assert np.array_equal(out, times[1].held_out) and (count < 2 or not np.array_equal(out, times[2].held_out))
    started = set(np.concatenate([times[0].start(round).ids for round in range(60)]).tolist())
    assert started == (set(range(30)) - set(out.tolist()) if policy != "fixed" else {3, 28, 11})


def test_a_fraction_is_of_the_clients_that_are_not_held_out() -> None:
    assert [len(clock(UniformParticipation(None, share, 10)).start(0).ids) for share in (0.5, 1.0)] == [10, 20]


def test_a_client_without_examples_is_never_asked() -> None:
    time = RoundClock(np.array([3, 0, 2]), UniformParticipation(3, None, 0), NoDelay(draw="client"), 0)
    assert sorted(time.start(0).ids.tolist()) == [0, 2]


def test_a_saved_clock_goes_on() -> None:
    first, second = (clock(UniformParticipation(5, None, 0), HalfNormalDelay(std=5.0, draw="client")) for _ in range(2))
    for round in range(7):
        first.start(round)
    second.load_state_dict(first.state_dict())
    for round in range(7, 20):
        a, b = first.start(round), second.start(round)
        assert a.ids.tolist() == b.ids.tolist() and a.due.tolist() == b.due.tolist()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: UniformParticipation(None, None, 0), "cohort_size"),
        (lambda: UniformParticipation(3, 0.5, 0), "cohort_size"),
        (lambda: UniformParticipation(0, None, 0), "cohort_size"),
        (lambda: UniformParticipation(None, 1.5, 0), "fraction"),
        (lambda: FixedParticipation([], 0), "clients"),
        (lambda: FixedParticipation([1, 1], 0), "clients"),
        (lambda: OverSelection(0, 1.3, 0), "cohort_size"),
        (lambda: OverSelection(3, 0.9, 0), "factor"),
        (lambda: clock(UniformParticipation(31, None, 0)), "cohort_size"),
        (lambda: clock(FixedParticipation([30], 0)), "clients"),
        (lambda: clock(OverSelection(20, 2.0, 0)), "cohort_size"),
        (lambda: UniformParticipation(3, None, -1), "held_out_clients"),
        (lambda: OverSelection(3, 1.0, 1.0), "held_out_clients"),
        (lambda: FixedParticipation([3], -0.5), "held_out_clients"),
        (lambda: clock(UniformParticipation(20, None, 11)), "held_out_clients"),
        (lambda: clock(UniformParticipation(None, 0.5, 30)), "held_out_clients"),
        (lambda: clock(OverSelection(10, 2.0, 0.5)), "held_out_clients"),
        (lambda: clock(FixedParticipation([1, 2], 29)), "held_out_clients"),
    ],
)
def test_a_bad_setting_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} "):
        make()
