import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedlab_runner.config.build import build
from fedlab_runner.core.local_training import ADAM_KEYS, OPTIMIZERS, SGD_KEYS
from fedlab_runner.core.optimizer import Adam, Bounded, Masked, zero_slots
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.toy import local

REFERENCES: dict[str, tuple[dict[str, Any], Callable[[list[torch.Tensor]], torch.optim.Optimizer]]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "decay": ({"weight_decay": 0.01}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        {"momentum": 0.9, "nesterov": True},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (
        {"optimizer": "adam", "betas": [0.8, 0.95], "weight_decay": 0.02},
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), weight_decay=0.02),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.02},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.02),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_rows_move_as_torch_moves_each_alone(name: str) -> None:
    changes, reference = REFERENCES[name]
    optimizer = local(**changes).make_optimizer()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 7, dtype=torch.float64, generator=generator)
    gradients = torch.randn(6, 4, 7, dtype=torch.float64, generator=generator)
    steps = [6, 5, 5, 2]  # sorted: rows that are done are sliced off and must not move

    w = start.clone()
    slots = zero_slots(optimizer, w)
    for t in range(6):
        active = sum(t < n for n in steps)
        optimizer.step(w[:active], gradients[t, :active], tuple(s[:active] for s in slots), 0.1, t)

    for row, n in enumerate(steps):
        alone = start[row].clone().requires_grad_()
        torch_optimizer = reference([alone])
        for t in range(n):
            alone.grad = gradients[t, row]
            torch_optimizer.step()
        torch.testing.assert_close(w[row], alone.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"optimizer": "lamb"}, "optimizer"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"epochs": None}, "epochs"),
        ({"steps": 3}, "epochs"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"momentum": 1.0}, "momentum"),
        ({"nesterov": True}, "nesterov"),
        ({"optimizer": "adam", "betas": [0.9]}, "betas"),
        ({"optimizer": "adamw", "eps": -1.0}, "eps"),
        ({"lr": math.inf}, "lr"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"weight_decay": math.inf}, "weight_decay"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": float("inf")}, "clip_norm"),
    ],
)
def test_a_bad_setting_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} "):
        local(**changes)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_key_of_another_optimizer_is_refused_and_its_own_are_needed(optimizer: str) -> None:
    plain = local(optimizer=optimizer)
    for key in (*SGD_KEYS, *ADAM_KEYS):
        if key in OPTIMIZERS[optimizer].keys:
            with pytest.raises(ValueError, match=f"^optimizer={optimizer} needs .*local={optimizer} .* set {key}$"):
                replace(plain, **{key: None})
        else:
            with pytest.raises(ValueError, match=f"^{key} does nothing for optimizer={optimizer}: it must be null"):
                replace(plain, **{key: {"nesterov": False, "betas": [0.5, 0.5]}.get(key, 0.0)})


def test_the_optimizer_alone_does_not_make_another_local_training() -> None:
    with pytest.raises(UserError, match=r"^local\.optimizer=adam needs other keys, .* choose local=adam instead"):
        build(composed("local.optimizer=adam", small=False))
    assert build(composed("local=adam", small=False)).local.lr == 1e-3


@pytest.mark.parametrize("name", [*REFERENCES, "no eps"])
def test_masked_parameters_stay_and_the_others_move_as_without_a_mask(name: str) -> None:
    """With decay, decoupled or not, momentum, and where Adam would divide zero by zero."""
    changes = {"optimizer": "adam", "eps": 0.0} if name == "no eps" else REFERENCES[name][0]
    mask = torch.tensor([True, False, True])
    plain = local(**changes).make_optimizer()
    masked = Masked(plain, mask)
    w, start = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    alone = w[:, mask].clone()
    slots, others = zero_slots(masked, w), zero_slots(plain, alone)
    for t in range(3):
        g = torch.full((2, 3), 0.5 + t, dtype=torch.float64) * mask
        masked.step(w, g, slots, 0.1, t)
        plain.step(alone, g[:, mask], others, 0.1, t)
    assert torch.equal(w[:, ~mask], start[:, ~mask]) and torch.equal(w[:, mask], alone)
    assert (alone != 1).all()


def test_bounded_parameters_are_clipped_after_each_step() -> None:
    bounded = Bounded(local(momentum=0.5).make_optimizer(), 0.0, 1.0)
    w = torch.tensor([0.5, 0.5, 0.5])
    slots = zero_slots(bounded, w)
    for t, g in enumerate(([9.0, -9.0, 1.0], [0.0, 0.0, 1.0])):
        bounded.step(w, torch.tensor(g), slots, 0.1, t)
    torch.testing.assert_close(w, torch.tensor([0.0, 1.0, 0.5 - 0.1 - 0.15]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 1e-10, 1e-20, 1e-30])
def test_adam_has_the_bits_of_its_formula_where_squares_vanish(size: float, dtype: torch.dtype) -> None:
    """Zeros, and numbers whose squares are no normal numbers any more."""
    rng, adam = torch.Generator().manual_seed(0), Adam(0.9, 0.999, 1e-8, 0.0, decoupled=False)
    w = torch.randn(2000, generator=rng, dtype=dtype)[::2]  # which PyTorch's fused step does not take
    x, m, v, slots = w.clone(), torch.zeros_like(w), torch.zeros_like(w), zero_slots(adam, w)
    for t in range(3):
        g = size * torch.randn(1000, generator=rng, dtype=dtype) * (torch.rand(1000, generator=rng) > 0.5)
        adam.step(w, g, slots, 1e-3, t)
        m, v = m.lerp(g, 1 - 0.9), (v * 0.999).addcmul(g, g, value=1 - 0.999)
        x = x.addcdiv(m, (v / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8, value=-1e-3 / (1 - 0.9 ** (t + 1)))
    assert torch.equal(w, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", REFERENCES)
def test_a_step_in_one_pass_is_that_of_single_operations(name: str, dtype: torch.dtype) -> None:
    """Also with a gradient whose values lie in another order in memory, as those of convolutions do."""
    optimizer, rng = local(**REFERENCES[name][0]).make_optimizer(), torch.Generator().manual_seed(0)
    w = torch.randn(2, 3, 4, 5, generator=rng, dtype=dtype)
    apart = torch.empty(2, 3, 4, 10, dtype=dtype)[..., ::2].copy_(w)  # not contiguous
    slots, others = zero_slots(optimizer, w), tuple(torch.empty_like(apart).zero_() for _ in range(optimizer.slots))
    for t in range(3):
        g = torch.randn(2, 3, 4, 5, generator=rng, dtype=dtype).contiguous(memory_format=torch.channels_last)
        before = g.clone()
        optimizer.step(w, g, slots, 0.1, t)
        optimizer.step(apart, g, others, 0.1, t)
        assert torch.equal(g, before)
        for mine, theirs in zip((w, *slots), (apart, *others), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)


def test_adam_without_eps_divides_by_the_root_itself() -> None:
    adam, w = Adam(0.9, 0.999, 0.0, 0.0, decoupled=False), torch.ones(2)
    slots = zero_slots(adam, w)
    adam.step(w, torch.tensor([0.0, 1.0]), slots, 1e-3, 0)
    assert w.isnan().tolist() == [True, False]  # 0 / 0, as in torch.optim
