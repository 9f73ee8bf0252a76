"""The global generators: seeded within a context, and afterwards as they were."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlab_runner.core.global_rng import CPU, kept_globals, own_generators, seed_globals, seeded
from fedlab_runner.utils.errors import UserError


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), np.random.random(), random.random()


def test_draws_within_are_those_of_the_seed_and_leave_no_trace() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    with own_generators(seed=3):
        assert torch.equal(torch.rand(4), expected)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_without_a_seed_draws_go_on_within() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with own_generators():
        assert torch.equal(torch.rand(4), expected)
    assert torch.equal(torch.rand(4), expected)


@kept_globals()
def test_each_round_of_a_seed_and_each_part_of_it_has_its_own_numbers() -> None:
    found = []
    for key in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1), (0, 0, 0)):
        seed_globals(CPU, *key)
        found.append(drawn())
    assert found[0] == found[4]
    assert all(len({numbers[i] for numbers in found}) == 4 for i in range(3))


@kept_globals()
def test_torch_and_numpy_draw_other_whole_numbers() -> None:
    seed_globals(CPU, 5)
    torchs, numpys = torch.randint(0, 2**24, (500,)).numpy(), np.random.randint(0, 2**24, 500)
    assert not (torchs == numpys).any()


@kept_globals()
def test_afterwards_all_are_as_they_were() -> None:
    seed_globals(CPU, 5)
    expected = drawn()
    seed_globals(CPU, 5)
    with pytest.raises(KeyError), kept_globals():
        seed_globals(CPU, 6)
        raise KeyError
    assert drawn() == expected


@kept_globals()
def test_what_no_run_seeds_is_refused() -> None:
    assert torch.equal(seeded(lambda: torch.rand(3), 1, "build()"), seeded(lambda: torch.rand(3), 1, "build()"))

    def touching() -> Tensor:
        random.random()  # as a library's thread may at the same time
        return torch.rand(3)

    seeded(touching, 1, "build()")
    for draw in (np.random.random, random.random):
        with pytest.raises(UserError, match=r"^the model's build\(\) takes random numbers of numpy or Python"):
            seeded(lambda draw=draw: torch.rand(3) * draw(), 1, "build()")  # type: ignore[misc]
