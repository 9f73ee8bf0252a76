import sys

import numpy as np
import pytest

from fedlab_runner.core import rng as module
from fedlab_runner.core.rng import Purpose, generator, generators, torch_seed
from tests.helpers.toy import ALGORITHMS, default_home, federation, few_rounds, run


def test_a_stream_is_a_function_of_its_key() -> None:
    draws = [generator(3, Purpose.BATCHES, 5, 7).random(4) for _ in range(2)]
    assert (draws[0] == draws[1]).all()


@pytest.mark.parametrize(
    "other",
    [(4, Purpose.BATCHES, 5, 7), (3, Purpose.COHORT, 5, 7), (3, Purpose.BATCHES, 6, 7), (3, Purpose.BATCHES, 5, 8)],
)
def test_each_part_of_the_key_gives_another_stream(other: tuple[int, Purpose, int, int]) -> None:
    assert not np.isin(
        generator(*other).integers(2**63, size=50), generator(3, Purpose.BATCHES, 5, 7).integers(2**63, size=50)
    ).any()


def test_many_clients_draw_what_each_draws_alone() -> None:
    clients = np.array([5, 0, 2**31])
    together = [
        (rng.permutation(9).tolist(), rng.normal(size=3).tolist(), rng.integers(9))
        for rng in generators(1, Purpose.BATCHES, 4, clients)
    ]
    alone = []
    for client in clients.tolist():
        rng = generator(1, Purpose.BATCHES, 4, client)
        alone.append((rng.permutation(9).tolist(), rng.normal(size=3).tolist(), rng.integers(9)))
    assert together == alone


@pytest.mark.parametrize("seed", [0, 2**47 - 1, 2**47, 2**48 - 1])
@pytest.mark.parametrize("round", [0, 2**31, 2**32 - 1])
def test_the_largest_keys_keep_all_their_bits(seed: int, round: int) -> None:
    clients = np.array([0, 1, 2**32 - 1])
    drawn = [
        [int(generator(seed, purpose, round, client).integers(2**63)) for client in clients.tolist()]
        for purpose in Purpose
    ]
    assert len({value for values in drawn for value in values}) == len(Purpose) * len(clients)
    assert drawn == [[int(rng.integers(2**63)) for rng in generators(seed, p, round, clients)] for p in Purpose]


def test_steps_are_parts_of_a_stream_of_their_own() -> None:
    def draws(step: int) -> list[int]:
        (rng,) = generators(1, Purpose.ALGORITHM, 4, np.array([5]), step)
        return list(rng.integers(2**63, size=50).tolist())

    assert draws(0) == generator(1, Purpose.ALGORITHM, 4, 5).integers(2**63, size=50).tolist()
    assert draws(1) == draws(1) and len({*draws(0), *draws(1), *draws(2**31)}) == 150


def test_half_a_word_left_over_by_one_client_does_not_reach_the_next() -> None:
    """32-bit draws keep half of a 64-bit word for later: it must not leak into another client's stream."""
    streams = []
    for rng in generators(0, Purpose.BATCHES, 0, np.array([1, 2])):
        streams.append(rng.integers(2**31, size=3, dtype=np.int32).tolist())
    assert streams[1] == generator(0, Purpose.BATCHES, 0, 2).integers(2**31, size=3, dtype=np.int32).tolist()


def test_torch_seeds_fit_a_torch_generator() -> None:
    seeds = {torch_seed(0, Purpose.DROPOUT, round, client) for round in range(10) for client in range(10)}
    assert len(seeds) == 100 and all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_stream_that_seeds_torch_draws_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, draws, key = set[tuple[int, int]](), set[tuple[int, int]](), module._key

    def recorded(*parts: int) -> tuple[int, int]:
        frame, callers = sys._getframe(1), set[str]()
        while frame is not None and frame.f_globals is vars(module):
            callers.add(frame.f_code.co_name)
            frame = frame.f_back
        found: tuple[int, int] = key(*parts)
        (seeds if "torch_seed" in callers or "<genexpr>" in callers else draws).add(found)
        return found

    monkeypatch.setattr(module, "_key", recorded)
    run(few_rounds(name), federation([8] * 4, cohort=2, home=default_home(name)), 2)
    assert seeds and draws and {Purpose(seed % 2**16).name for seed, _ in seeds & draws} == set()
