"""What compiled steps do in their own way on a CPU has the values and gradients of PyTorch's."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_executors import COMPILED, train
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache
from torch.func import grad, vmap
from toy import CLASSES, federation

from fedlab_runner.executors import passes
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.passes import Pooling, pooled, prepare
from fedlab_runner.executors.work import Executor


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
    assert torch.equal(ours, theirs)
    weights = torch.randn_like(theirs)
    assert torch.equal(*(torch.autograd.grad(y, x, weights)[0] for y in (ours, theirs)))


def test_pooling_passes_on_what_is_not_finite() -> None:
    x = images(2, 2, 4, 4)
    x[0, 0, 1, 1] = x[0, 1, 0, 0] = float("nan")
    x[1, 0, 2, 3], x[1, 1] = float("inf"), -float("inf")
    x.requires_grad_()
    ours, theirs = pooled(x, 2), F.max_pool2d(x, 2)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(*(torch.autograd.grad(y, x, torch.ones_like(y))[0] for y in (ours, theirs)))


def test_many_models_pool_side_by_side() -> None:
    x = images(3, 2, 1, 6, 6)
    gradients = (vmap(grad(lambda x, pool=pool: (pool(x, 2) ** 3).sum()))(x) for pool in (pooled, F.max_pool2d))
    assert torch.equal(*gradients)


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
    monkeypatch.setattr(passes, "pooled", lambda *_: pytest.fail("not squares side by side"))
    assert type(pool) is Pooling and torch.equal(pool(x), theirs)


def network() -> nn.Module:
    """Of feature vectors of 5, with a pooling, and a layer for each size of update."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 5, 1)), nn.Upsample(scale_factor=2), nn.Conv2d(1, 3, 1), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, CLASSES)),
    )


@pytest.mark.slow  # minutes of compiling
@pytest.mark.parametrize("executor", COMPILED, ids=["loop", "cohort", "chunks", "processes"])
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
def test_compiled_steps_that_pool_and_update_in_place_equal_eager_ones(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[dict[str, Any]] = []
    poolings: list[int] = []
    replace, pool = passes._replace, passes.pooled
    monkeypatch.setattr(passes, "LEAST", 8 * 15)  # one of the two layers
    monkeypatch.setattr(passes, "_replace", lambda match, **found: (updates.append(found), replace(match, **found)))
    monkeypatch.setattr(passes, "pooled", lambda x, side: (poolings.append(side), pool(x, side))[1])
    fed, plain = federation(executor=executor, build=network), federation(executor=Loop(compile=False), build=network)
    with fresh_cache():  # a graph of before would not be gone through again
        for round, factor in enumerate((1.0, 0.5)):
            for each in (fed, plain):
                each.begin(round, factor)
            for mine, theirs in zip(train(fed), train(plain), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    one_by_one = isinstance(executor, Loop) or executor is COMPILED[-1]
    assert len(updates) == one_by_one and poolings
