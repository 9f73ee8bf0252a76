"""FedCDA: identities, edge cases, and a twin that enumerates the objective."""

import itertools
import logging
import math
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.algorithms.fedcda import MAX_COMBINATIONS, CachedModel, FedCDAState, FedCDAUpload
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.updates import Updates
from tests.helpers.toy import EQUAL, algorithm, federation, local, normed, run, tensors

LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 2.0}


def fedcda(**overrides: Any) -> Any:
    return algorithm("fedcda", **({"warmup": 0} | overrides))


def objective(models: np.ndarray, losses: np.ndarray, smoothness: float) -> float:
    """J of Eq 5: models [q, P], losses [q]."""
    return float(losses.mean() + smoothness / 2 * np.square(models - models.mean(0)).sum(1).mean())


class Twin:
    """Algorithm 1 with lists, and every combination's objective from its definition."""

    def __init__(self, built: Any, num_params: int) -> None:
        self.built, self.p = built, num_params
        self.caches: dict[int, list[tuple[np.ndarray, float]]] = {}
        self.chosen: dict[int, int] = {}

    def step(self, ids: list[int], models: np.ndarray, losses: np.ndarray, order: np.ndarray) -> np.ndarray:
        b = self.built
        for n, w, loss in zip(ids, models, losses, strict=True):
            self.caches[n] = [(w, float(loss)), *self.caches.get(n, [])][: b.memory]
        free = sorted(self.caches) if b.strategy == "optimal" else order.tolist()
        self.chosen = {n: place for n, place in self.chosen.items() if n not in free}
        number = 1 if b.strategy == "optimal" else min(b.batches, len(free))
        for batch in np.array_split(np.array(free), number):
            places = [range(len(self.caches[n])) for n in batch]
            tried = [self.chosen | dict(zip(batch.tolist(), each, strict=True)) for each in itertools.product(*places)]
            self.chosen = min(tried, key=self.objective)  # the first of equals: the newest
        return np.stack([self.caches[n][place][0] for n, place in self.chosen.items()]).mean(0)

    def objective(self, chosen: dict[int, int]) -> float:
        used = [self.caches[n][place] for n, place in chosen.items()]
        models, losses = np.stack([w[: self.p] for w, _ in used]), np.array([loss for _, loss in used])
        return objective(models, losses, self.built.smoothness)


def stream(fed: Federation, rounds: int, clients: int, seed: int = 0, offset: float = 0.0) -> Any:
    """For each round some clients, their models around a common point and their losses."""
    rng = np.random.default_rng(seed)
    base = fed.family.init(0).numpy() + offset
    for _ in range(rounds):
        ids = rng.permutation(clients)[: rng.integers(1, 6)].tolist()
        yield ids, base + 0.3 * rng.normal(size=(len(ids), len(base))), rng.random(len(ids))


def arrivals(ids: list[int], models: np.ndarray, losses: np.ndarray) -> Updates[FedCDAUpload]:
    sizes = torch.ones(len(ids), dtype=torch.int64)
    upload = FedCDAUpload(torch.from_numpy(models), torch.from_numpy(losses).unsqueeze(1))
    return Updates(upload, torch.tensor(ids), sizes, torch.zeros_like(sizes))


def steps(built: Any, fed: Federation, rounds: Any) -> Any:
    """The State after each round of a stream."""
    state = built.init(fed)
    for round, each in enumerate(rounds):
        fed.begin(round, 1.0)
        state = built.server_step(state, arrivals(*each), fed)
        yield round, each[0], state


@pytest.mark.parametrize("build", [None, normed])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"batches": 1},
        {"batches": 2, "memory": 4, "smoothness": 0.1},
        {"batches": 50, "smoothness": 0.0},
        {"strategy": "optimal", "memory": 2},
    ],
    ids=str,
)
def test_the_search_chooses_what_enumeration_chooses(fields: dict[str, Any], build: Any) -> None:
    fed = federation([4] * 7, **({"build": build} if build else {}))
    built = fedcda(**fields)
    twin = Twin(built, fed.family.num_params)
    places = set()
    rounds = list(stream(fed, 12, 7))
    for round, ids, state in steps(built, fed, rounds):
        order = generator(fed.seed, Purpose.ALGORITHM, round).permutation(np.array(ids))
        mean = twin.step(*rounds[round], order)
        assert state.chosen == twin.chosen
        torch.testing.assert_close(state.params, torch.from_numpy(mean), rtol=0, atol=1e-10)
        assert fed.collect()["algorithm/objective"] == pytest.approx(twin.objective(twin.chosen), abs=1e-10)
        places |= set(state.chosen.values())
    assert len(places) > 1, "not always the newest"


@pytest.mark.parametrize("shift", [1.0, 1e4])
def test_a_common_translation_changes_no_choice(shift: float) -> None:
    fed = federation([4] * 7)
    mine = [state.chosen for *_, state in steps(fedcda(), fed, stream(fed, 12, 7))]
    assert mine == [state.chosen for *_, state in steps(fedcda(), fed, stream(fed, 12, 7, offset=shift))]


def test_one_batch_is_the_best_of_all_numbers_of_batches() -> None:
    """For one round after the same ones, that is with the same fixed models."""
    fed = federation([4] * 12)
    *before, _ = stream(fed, 10, 12, seed=3)
    *_, (*_, state) = steps(fedcda(strategy="newest"), fed, before)
    rng = np.random.default_rng(1)
    last = (list(range(6)), fed.family.init(0).numpy() + 0.3 * rng.normal(size=(6, fed.family.size)), rng.random(6))
    found = {}
    for batches in range(1, 8):
        fed.begin(len(before), 1.0)
        fedcda(batches=batches).server_step(state, arrivals(*last), fed)
        found[batches] = fed.collect()["algorithm/objective"]
    assert all(found[1] <= value + 1e-12 for value in found.values()) and len(set(found.values())) > 1
    fed.begin(len(before), 1.0)
    fedcda(strategy="optimal").server_step(state, arrivals(*last), fed)
    assert fed.collect()["algorithm/objective"] <= found[1] + 1e-12


@pytest.mark.parametrize("strategy", ["approximate", "optimal", "random"])
def test_a_memory_of_one_is_newest(strategy: str) -> None:
    mine = run(fedcda(memory=1, strategy=strategy), federation(**LATE), 8)
    newest = run(fedcda(strategy="newest"), federation(**LATE), 8)
    torch.testing.assert_close(mine.params, newest.params, rtol=0, atol=1e-12)


def test_the_choice_costs_the_products_of_the_models_that_may_be_chosen() -> None:
    """2 P n (n + 1) operations for n cached models: three in the first round, six in the second."""
    fed, built = federation([6, 6, 6]), fedcda(memory=2, batches=1)
    state, gflops = None, []
    for round in range(2):
        state = run(built, fed, 1, round, state)
        gflops.append(fed.collect()["cost/server_gflops"])
    assert 1e9 * (gflops[1] - gflops[0]) == pytest.approx(2 * fed.family.num_params * (6 * 7 - 3 * 4))


@pytest.mark.parametrize("build", [None, normed])
def test_warm_up_is_fedavg_and_fills_the_caches(build: Any) -> None:
    kinds: dict[str, Any] = {**LATE, **({"build": build} if build else {})}
    fed = federation(**kinds)
    state = run(fedcda(warmup=8), fed, 8)
    fedavg: Any = run(algorithm("fedavg", late_policy="model"), federation(**kinds), 8)
    torch.testing.assert_close(state.params, fedavg.params, rtol=0, atol=1e-12)
    assert max(map(len, state.caches.values())) > 1 and set(state.chosen.values()) == {0}


@pytest.mark.parametrize("build", [None, normed])
def test_full_participation_with_a_memory_of_one_is_uniform_fedavg(build: Any) -> None:
    kinds: dict[str, Any] = {"build": build} if build else {}
    state = run(fedcda(memory=1), federation(**kinds), 4)
    fedavg: Any = run(algorithm("fedavg", weighting="uniform"), federation(**kinds), 4)
    torch.testing.assert_close(state.params, fedavg.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_of_equal_models_the_newest_is_chosen(dtype: type) -> None:
    fed = federation([4] * 9)
    rng = np.random.default_rng(0)
    models = rng.normal(size=(9, fed.family.size)).astype(dtype).astype(np.float64)
    rounds = [(list(range(9)), models, np.full(9, 0.5))] * 4
    for *_, state in steps(fedcda(batches=1), fed, rounds):
        assert set(state.chosen.values()) == {0}
    assert len(state.caches[0]) == 3


def test_clients_that_were_never_sampled_do_not_count_and_others_keep_theirs() -> None:
    fed = federation([4] * 7)
    rounds = list(stream(fed, 2, 7))
    seen: set[int] = set()
    for _, ids, state in steps(fedcda(strategy="newest"), fed, rounds):
        seen |= set(ids)
        assert set(state.chosen) == seen == set(state.caches) and fed.collect()["algorithm/cached_clients"] == len(seen)
    newest = {n: w for ids, models, _ in rounds for n, w in zip(ids, models, strict=True)}
    expected = torch.from_numpy(np.stack(list(newest.values())).mean(0))
    torch.testing.assert_close(state.params, expected, rtol=0, atol=1e-12)
    assert len(seen) < 7


def test_variances_next_to_nothing_do_not_end_below_zero() -> None:
    """As the sum of the models in use would, which 0.2, 0.7 and 0.1 have joined and left."""
    fed, built = federation([4] * 3, build=normed), fedcda(strategy="newest")
    state = built.init(fed)
    for clients, variances in (([0, 1, 2], [0.2, 0.7, 0.1]), ([0], [1e-20]), ([1], [1e-20]), ([2], [1e-20])):
        models = state.params.new_ones(len(clients), fed.family.size)
        models[:, -1] = torch.tensor(variances, dtype=models.dtype)
        upload = FedCDAUpload(models, models.new_zeros(len(clients), 1))
        ids = torch.tensor(clients)
        state = built.server_step(state, Updates(upload, ids, torch.full_like(ids, 4), torch.zeros_like(ids)), fed)
    assert state.total[-1] < 0 and state.params[-1] == pytest.approx(1e-20, rel=1e-9, abs=0)


def test_caches_hold_the_last_models_newest_first() -> None:
    fed = federation([4] * 3)
    for round, _, state in steps(fedcda(memory=2), fed, list(stream(fed, 9, 3))):
        assert all(len(cache) <= 2 for cache in state.caches.values())
        for cache in state.caches.values():
            rounds = [CachedModel(*entry).round for entry in cache]
            assert rounds == sorted(rounds, reverse=True) and rounds[0] <= round


def test_random_takes_any_cached_model() -> None:
    state = run(fedcda(strategy="random"), federation([4] * 9), 6)
    assert set(state.chosen.values()) == {0, 1, 2}
    assert state.chosen == run(fedcda(strategy="random"), federation([4] * 9), 6).chosen


def test_nothing_happens_when_nobody_reports() -> None:
    fed = federation(EQUAL, std=1e6)
    built = fedcda()
    state = built.init(fed)
    assert run(built, fed, 3, state=state) is state


def test_very_many_arrivals_choose_in_more_batches() -> None:
    fed = federation([4] * 40)
    rng = np.random.default_rng(0)
    rounds = [(list(range(40)), rng.normal(size=(40, fed.family.size)), rng.random(40)) for _ in range(3)]
    for *_, state in steps(fedcda(batches=1), fed, rounds):
        assert len(state.chosen) == 40 and 0 < fed.collect()["algorithm/combinations"] <= 4 * MAX_COMBINATIONS


def test_fewer_clients_than_batches() -> None:
    one, other = (run(fedcda(batches=batches), federation(**LATE), 8) for batches in (3, 100))
    assert torch.equal(one.params, other.params)


@pytest.mark.parametrize(("cohort", "clients"), [(3, "3 clients"), (1, "1 client")])
def test_more_batches_than_clients_is_said_once(caplog: pytest.LogCaptureFixture, cohort: int, clients: str) -> None:
    fed, built = federation(**(LATE | {"cohort": cohort})), fedcda(batches=7)
    with caplog.at_level(logging.WARNING):
        built.check(fed)
        run(built, fed, 5)
    assert [record.getMessage() for record in caplog.records] == [
        f"algorithm.batches is 7, but a round has {clients}: there can be no more batches"
    ]


def test_the_time_of_the_search_is_a_timing_and_no_metric() -> None:
    fed, built = federation([4] * 6), fedcda()
    run(built, fed, 3)
    assert 0 < fed.metrics.timings["time/selection"] < 10
    assert not [key for key in fed.collect() if "time" in key]
    assert fed.collect()["algorithm/combinations"] == 3 * 9, "three batches of two clients with three models each"
    run(built, fed, 1)
    run(fedcda(strategy="newest"), fed, 1)
    assert "time/selection" not in fed.metrics.timings


def test_the_payload_is_a_model_and_a_loss() -> None:
    fed = federation(EQUAL, build=normed)
    run(fedcda(), fed, 1)
    size = fed.family.size
    assert fed.collect()["comm/download_mb"] == pytest.approx(4 * size * 4 / 1e6)
    assert fed.collect()["comm/upload_mb"] == pytest.approx(4 * (size + 1) * 4 / 1e6)
    assert fed.collect()["cost/server_cache_mb"] == pytest.approx(5 * size * 4 / 1e6), "four models and their sum"


def test_what_is_reported_is_the_loss_of_the_last_epoch() -> None:
    fed = federation(EQUAL, training=local(epochs=3))
    built = fedcda()
    fed.begin(0, 1.0)
    cohort = fed.start_cohort((fed.family.init(0),))
    upload = built.client_update(built.init(fed), cohort)
    assert cohort.last_loss is not None and torch.equal(upload.losses[:, 0], cohort.last_loss)


# What tests/algorithms/test_contract.py asks of every algorithm, without the warm-up that hides the search there.


@pytest.mark.parametrize("strategy", ["approximate", "optimal", "random"])
def test_it_resumes_bit_for_bit(strategy: str) -> None:
    built, fed, saved = fedcda(strategy=strategy, memory=2), federation(**LATE), []
    state = built.init(fed)
    for round in range(8):
        saved.append(pack({"state": state, "fed": fed.state_dict()}))
        state = run(built, fed, 1, first=round, state=state)
    for round, checkpoint in enumerate(saved):
        again = federation(**LATE)
        resumed = unpack(checkpoint["state"], like=built.init(again))
        again.load_state_dict(checkpoint["fed"])
        resumed = run(built, again, 8 - round, first=round, state=resumed)
        assert isinstance(resumed, FedCDAState) and resumed.chosen == state.chosen
        assert all(torch.equal(a, b) for a, b in zip(tensors(resumed), tensors(state), strict=True))
        assert again.collect() == fed.collect()


def test_a_round_changes_nothing_in_its_state() -> None:
    built, fed = fedcda(), federation(**LATE)
    state = run(built, fed, 5)
    before, chosen = [t.clone() for t in tensors(state)], dict(state.chosen)
    run(built, fed, 2, first=5, state=state)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(state), strict=True)) and state.chosen == chosen


# What is refused.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory": 0}, r"memory must be in \[1, 1048576\], got 0"),
        ({"memory": 2**20 + 1}, r"memory must be in \[1, 1048576\], got 1048577"),
        ({"batches": 0}, "batches must be >= 1, got 0"),
        ({"warmup": -1}, "warmup must be >= 0, got -1"),
        ({"smoothness": -0.5}, r"smoothness must be >= 0, got -0\.5"),
        ({"strategy": "best"}, "strategy must be one of approximate, optimal, newest, random, got best"),
    ],
)
def test_wrong_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        fedcda(**fields)


def test_too_many_combinations_are_refused_before_the_run() -> None:
    fed = federation([2] * 30)
    with pytest.raises(ValueError, match=r"^batches must be >= 3 for 30 clients a round, got 1: 3\^30 combinations a "):
        fedcda(batches=1).check(fed)
    with pytest.raises(ValueError, match=r"^strategy must be approximate for 30 clients: optimal tries 3\^30 "):
        fedcda(strategy="optimal").check(fed)
    fedcda(batches=3).check(fed)
    fedcda(batches=1, memory=1).check(fed)
    fedcda(strategy="optimal", memory=1).check(fed)
    assert 3 ** math.floor(math.log(MAX_COMBINATIONS, 3)) <= MAX_COMBINATIONS
