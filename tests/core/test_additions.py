"""What algorithms add to local steps: the gradients that penalties give by hand are those of autograd."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedlab_runner.algorithms.feddyn import _Dynamic
from fedlab_runner.core.additions import Penalty, Proximal
from fedlab_runner.executors.loop import Loop
from tests.helpers.toy import federation

PENALTIES: dict[str, tuple[Penalty, int]] = {  # with the number of vectors that they are given
    "proximal": (Proximal(0.3), 1),
    "proximal, a part shared": (Proximal(0.3), 2),
    "dynamic": (_Dynamic(Proximal(0.07)), 2),
    "dynamic, a part shared": (_Dynamic(Proximal(0.07)), 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PENALTIES)
def test_a_gradient_by_hand_is_that_of_autograd_to_the_bit(name: str, dtype: torch.dtype) -> None:
    penalty, vectors = PENALTIES[name]
    rng = torch.Generator().manual_seed(1)
    w, *own = (torch.randn(1003, generator=rng, dtype=dtype) for _ in range(vectors + 1))
    if "shared" in name:
        own[-1] = (own[-1] > 0).to(dtype)
    leaf = w.clone().requires_grad_()
    (expected,) = torch.autograd.grad(penalty(leaf, *own), leaf)
    assert torch.equal(penalty.gradient(w, *own), expected)  # type: ignore[attr-defined]  # not every penalty has one
    assert expected.any()


@dataclass(frozen=True)
class _Flat:
    """A penalty of which only its method knows a gradient."""

    def __call__(self, w: Tensor) -> Tensor:
        return w.detach().square().sum()

    def gradient(self, w: Tensor) -> Tensor:
        return 2 * w


def test_the_loop_takes_the_gradient_by_hand() -> None:
    def square(w: Tensor) -> Tensor:
        return w.square().sum()

    found = []
    for penalty in (_Flat(), square):
        fed = federation([5, 4], cohort=2, executor=Loop(compile=False))
        fed.begin(0, 1.0)
        x = fed.family.init(0)
        found.append(fed.start_cohort([x]).train(x, penalty=penalty))
    assert torch.equal(*found)
