"""Memory of a cohort's models is used again, but never while somebody holds a part of it."""

import numpy as np
import pytest
import torch

from fedlab_runner.executors._fork.buffers import Buffer
from tests.helpers.toy import federation


@pytest.mark.parametrize("shared", [False, True])
def test_memory_is_used_again_when_nobody_holds_it(shared: bool) -> None:
    buffer = Buffer(shared)
    first = buffer.take(3, 2, torch.float64)
    first.fill_(7)
    place = first.data_ptr()
    del first
    again = buffer.take(3, 2, torch.float64)
    assert again.data_ptr() == place and again.shape == (3, 2)
    assert buffer.take(4, 2, torch.float64).shape == (4, 2) and buffer.take(0, 2, torch.float32).shape == (0, 2)


@pytest.mark.parametrize("hold", [lambda y: y, lambda y: y[1], lambda y: y.numpy()[0], lambda y: y.view(-1)[3:]])
def test_what_is_held_keeps_its_values(hold: object) -> None:
    assert callable(hold)
    buffer = Buffer(shared=False)
    y = buffer.take(3, 2, torch.float64)
    y.fill_(7)
    held = hold(y)
    del y
    buffer.take(3, 2, torch.float64).fill_(-1)
    assert bool((torch.as_tensor(held) == 7).all())


def test_the_models_of_a_round_outlive_the_next() -> None:
    fed = federation()
    ids = np.arange(4)
    y = fed.cohort(ids).train(fed.family.init(0))
    kept = y.clone()
    fed.begin(1, 1.0)
    assert not torch.equal(fed.cohort(ids).train(fed.family.init(1)), kept) and torch.equal(y, kept)
