"""Max pooling by comparisons has the values and gradients of PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedlab_runner.core.layers import pooling
from fedlab_runner.core.layers.pooling import Pooling, greatest, pooled
from fedlab_runner.core.layers.replacement import prepare


def images(*shape: int) -> Tensor:
    """With many equal values, as after ReLU, and none that is not a number."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (3 * drawn).round().relu()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(4, 3, 8, 8), (2, 1, 7, 9), (1, 5, 3, 4)])
@pytest.mark.parametrize("side", [2, 3])
def test_pooling_has_pytorchs_values_and_gradients(
    side: int, shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    x = images(*shape).contiguous(memory_format=layout).requires_grad_()
    ours, theirs = pooled(x, side), F.max_pool2d(x, side)
    assert torch.equal(ours, theirs) and torch.equal(greatest(x, side), theirs)
    weights = torch.randn_like(theirs)
    assert torch.equal(*(torch.autograd.grad(y, x, weights)[0] for y in (ours, theirs)))


def test_pooling_passes_on_what_is_not_finite() -> None:
    x = images(2, 2, 4, 4)
    x[0, 0, 1, 1] = x[0, 1, 0, 0] = float("nan")
    x[1, 0, 2, 3], x[1, 1] = float("inf"), -float("inf")
    x.requires_grad_()
    ours, theirs = pooled(x, 2), F.max_pool2d(x, 2)
    for mine in (ours, greatest(x, 2)):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(*(torch.autograd.grad(y, x, torch.ones_like(y))[0] for y in (ours, theirs)))


def test_many_models_pool_side_by_side() -> None:
    x = images(3, 2, 1, 6, 6)
    gradients = (vmap(grad(lambda x, pool=pool: (pool(x, 2) ** 3).sum()))(x) for pool in (pooled, F.max_pool2d))
    assert torch.equal(*gradients)
    assert torch.equal(vmap(greatest, (0, None))(x, 2), vmap(F.max_pool2d, (0, None))(x, 2))


def test_a_model_pools_by_comparisons_where_no_gradient_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, seen = prepare(nn.Sequential(nn.MaxPool2d(2))), images(2, 3, 4, 4), list[int]()
    monkeypatch.setattr(pooling, "greatest", lambda inputs, side: (seen.append(side), greatest(inputs, side))[1])
    with torch.no_grad():
        assert torch.equal(model(x), F.max_pool2d(x, 2)) and seen == [2]
    assert torch.equal(model(x), F.max_pool2d(x, 2)) and seen == [2]


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d((2, 1)),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(4),
    ],
    ids=str,
)
def test_other_poolings_stay_as_they_are(pool: nn.MaxPool2d, monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(2, 1, 7, 7)
    theirs = pool(x)
    prepare(pool)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for name in ("pooled", "greatest"):
        monkeypatch.setattr(pooling, name, lambda *_: pytest.fail("not squares side by side"))
    assert type(pool) is Pooling and torch.equal(pool(x), theirs)
    with torch.no_grad():
        assert torch.equal(pool(x), theirs)
