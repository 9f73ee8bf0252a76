"""Each server optimiser has the formula of its paper, and of the libraries that its keys name."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlab_runner.server_optimizers.base import ServerOptimizer
from tests.helpers.toy import SERVER_OPTIMIZERS, server_optimizer

STEPS, SIZE = 12, 50
ACTING = [name for name in SERVER_OPTIMIZERS if server_optimizer(name).acts]
AS_TORCH = {"initial": 0.0, "bias_correction": "adam"}


def deltas() -> list[Tensor]:
    """Steps of an algorithm, of other sizes and signs from one to the next; one value never moves."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(STEPS, SIZE, dtype=torch.float64, generator=generator)
    rows *= torch.logspace(0, -3, STEPS, dtype=torch.float64).unsqueeze(1)
    rows[:, 0] = 0
    return list(rows)


def path(optimizer: ServerOptimizer) -> list[Tensor]:
    """The parameters after each step."""
    x, found = torch.linspace(-1, 1, SIZE, dtype=torch.float64), []
    moments = optimizer.init(x)
    for t, delta in enumerate(deltas()):
        x, moments = optimizer.step(x, delta, moments, t)
        found.append(x)
    return found


def torch_path(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> list[Tensor]:
    """The same by an optimiser of PyTorch, whose gradient is minus the step."""
    w = torch.linspace(-1, 1, SIZE, dtype=torch.float64).requires_grad_()
    optimizer, found = make([w]), []
    for delta in deltas():
        w.grad = -delta
        optimizer.step()
        found.append(w.detach().clone())
    return found


def agree(mine: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "keys", "make"),
    [
        ("sgd", {"lr": 0.7, "momentum": 0.0}, lambda w: torch.optim.SGD(w, lr=0.7)),
        ("sgd", {"lr": 0.7, "momentum": 0.9}, lambda w: torch.optim.SGD(w, lr=0.7, momentum=0.9)),
        (
            "sgd",
            {"lr": 0.7, "momentum": 0.9, "nesterov": True},
            lambda w: torch.optim.SGD(w, lr=0.7, momentum=0.9, nesterov=True),
        ),
        ("adam", AS_TORCH, lambda w: torch.optim.Adam(w, lr=0.01, betas=(0.9, 0.99), eps=1e-3)),
        (
            "adamw",
            {**AS_TORCH, "weight_decay": 0.3},
            lambda w: torch.optim.AdamW(w, lr=0.01, betas=(0.9, 0.99), eps=1e-3, weight_decay=0.3),
        ),
        (
            "adagrad",
            {"initial": 0.2},
            lambda w: torch.optim.Adagrad(w, lr=0.1, eps=1e-3, initial_accumulator_value=0.2),
        ),
    ],
)
def test_pytorch_has_the_same(name: str, keys: dict[str, Any], make: Any) -> None:
    """pfl-research's central optimisers are PyTorch's."""
    agree(path(server_optimizer(name, **keys)), torch_path(make))


RULES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * torch.sign(v - square),
    "adagrad": lambda v, square, beta2: v + square,
}


def by_hand(
    name: str, lr: float, beta1: float, beta2: float, tau: float, first: float, pace: Callable[[int], float]
) -> list[Tensor]:
    """Algorithm 2, with a learning rate lr * pace(t) at step t = 1, 2, ..."""
    x = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    m, v, found = torch.zeros_like(x), torch.full_like(x, first), []
    for t, delta in enumerate(deltas(), 1):
        m, v = beta1 * m + (1 - beta1) * delta, RULES[name](v, delta**2, beta2)
        x = x + lr * pace(t) * m / (torch.sqrt(v) + tau)
        found.append(x)
    return found


def alpha_t(t: int) -> float:
    """Kingma and Ba, before section 2.1, for beta1 = 0.9 and beta2 = 0.99."""
    return math.sqrt(1 - 0.99**t) / (1 - 0.9**t)


def always(t: int) -> float:
    return 1.0


@pytest.mark.parametrize("name", ["adam", "yogi"])
@pytest.mark.parametrize(
    ("keys", "first", "pace"),
    [
        ({}, 1e-6, always),  # Algorithm 2, v_{-1} = tau^2
        ({"initial": 0.0}, 0.0, always),  # FLamby; Flower's FedYogi
        ({"initial": 0.5, "bias_correction": "keras"}, 0.5, alpha_t),  # Reddi et al.'s code
        ({"initial": 0.0, "bias_correction": "flower"}, 0.0, lambda t: alpha_t(t + 1)),  # Flower's FedAdam
    ],
    ids=["paper", "flamby", "keras", "flower"],
)
def test_adam_and_yogi_are_those_of_the_paper_and_of_other_libraries(
    name: str, keys: dict[str, Any], first: float, pace: Callable[[int], float]
) -> None:
    agree(path(server_optimizer(name, **keys)), by_hand(name, 0.01, 0.9, 0.99, 1e-3, first, pace))


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_adagrad_is_that_of_the_paper(beta1: float) -> None:
    """0.9: FLamby's."""
    optimizer = server_optimizer("adagrad", beta1=beta1)
    agree(path(optimizer), by_hand("adagrad", 0.1, beta1, 0.0, 1e-3, 1e-6, always))


def test_each_correction_makes_a_difference() -> None:
    paths = [path(server_optimizer("adam", bias_correction=each)) for each in ("none", "adam", "keras", "flower")]
    for i, one in enumerate(paths):
        assert all(not torch.allclose(one[2], other[2], rtol=0, atol=1e-6) for other in paths[:i])


@pytest.mark.parametrize("name", ACTING)
def test_a_step_writes_into_nothing(name: str) -> None:
    optimizer = server_optimizer(name)
    x, delta = torch.randn(SIZE), torch.randn(SIZE)
    moments = optimizer.init(x)
    _, moments = optimizer.step(x, delta, moments, 0)
    before = [t.clone() for t in (x, delta, *moments)]
    _, after = optimizer.step(x, delta, moments, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, delta, *moments), strict=True))
    assert [(t.shape, t.dtype) for t in after] == [(t.shape, t.dtype) for t in moments]
    assert not moments or not torch.equal(moments[-1], after[-1])


@pytest.mark.parametrize(
    ("name", "keys", "fault"),
    [
        ("sgd", {"lr": 0.0}, "lr must be > 0, got 0"),
        ("sgd", {"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1"),
        ("sgd", {"momentum": 0.0, "nesterov": True}, "nesterov needs momentum > 0"),
        ("adam", {"tau": 0.0}, "tau must be > 0, got 0"),
        ("adam", {"beta2": 1.0}, r"beta2 must be in \[0, 1\)"),
        ("yogi", {"initial": -1.0}, "initial must be >= 0"),
        ("yogi", {"bias_correction": "torch"}, "bias_correction must be one of none, adam, keras, flower, got torch"),
        ("adagrad", {"lr": math.inf}, "lr must be > 0 and < 3e38, got inf"),
        ("adamw", {"weight_decay": -0.1}, "weight_decay must be >= 0"),
    ],
)
def test_what_is_out_of_range_is_refused(name: str, keys: dict[str, Any], fault: str) -> None:
    with pytest.raises(Exception, match=fault):
        server_optimizer(name, **keys)
