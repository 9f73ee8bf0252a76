"""Torch's global generators: seeded within a context, and afterwards as they were."""

import torch

from fedlab_runner.core.torch_rng import own_generators


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
