"""What compiled steps do in their own way on a CPU has the values and gradients of PyTorch's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.proxy_tensor import make_fx

from fedlab_runner.core import products
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.layers import pooling
from fedlab_runner.executors import _compiler_passes as passes
from fedlab_runner.executors.graphs import graph_of
from fedlab_runner.executors.loop import Loop
from tests.executors.test_contract import COMPILED, train
from tests.helpers.toy import CLASSES, federation


def network() -> nn.Module:
    """Of feature vectors of 5, with a pooling, and a layer for each size of update."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 5, 1)), nn.Upsample(scale_factor=2), nn.Conv2d(1, 3, 1), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, CLASSES)),
    )


def test_a_factor_in_a_sum_is_an_operation_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler would forget it in the sum of a product of matrices and weights; slow tests compile such sums."""
    a, b, w = (torch.rand(3, 3, dtype=torch.float64) for _ in range(3))
    graph = make_fx(lambda a, b, w: (a @ b).add(w, alpha=0.01).add(w).add(1.0, alpha=2))(a, b, w)
    passes.ExplicitScale()(graph.graph)
    graph.recompile()
    assert sum(node.target is torch.ops.aten.mul.Tensor for node in graph.graph.nodes) == 1
    torch.testing.assert_close(graph(a, b, w), a @ b + 1.01 * w + 2, rtol=0, atol=1e-14)

    given: list[Any] = []
    monkeypatch.setattr(
        torch, "compile", lambda function, options, **_: given.append(options["post_grad_custom_pre_pass"])
    )
    for by_layer in (False, True):
        graph_of(lambda: None, layer_by_layer=by_layer)
    assert [type(each) for each in given] == [passes.ExplicitScale] * 2


@pytest.fixture
def fast_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN takes products of any size, on every machine that has it."""
    if not products.has_onednn():
        pytest.skip("this build of PyTorch has no oneDNN")
    monkeypatch.setattr(products, "pays", lambda: True)
    monkeypatch.setattr(products, "MIN_PRODUCT", 4 * 3 * 2)


@pytest.mark.usefixtures("fast_products")
def test_large_products_become_onednns(monkeypatch: pytest.MonkeyPatch) -> None:
    def several(x: Tensor, w: Tensor, bias: Tensor, y: Tensor) -> list[Tensor]:
        plain = torch.addmm(bias, x, w), x @ w, torch.addmm(y, x, w), torch.addmm(bias, x, w, alpha=2.0)
        return [*plain, x[:3] @ w, x[:, :2] @ w[:2], x.double() @ w.double()]

    given = torch.randn(4, 3), torch.randn(3, 2), torch.randn(2), torch.randn(4, 2)
    traced = make_fx(several)(*given)
    passes.FastProducts()(traced.graph)
    traced.recompile()
    fast = [node for node in traced.graph.nodes if node.target is torch.ops.fedlab.product.default]
    assert len(fast) == 2 and all(node.meta["val"].shape == (4, 2) for node in fast)
    for mine, theirs in zip(traced(*given), several(*given), strict=True):
        torch.testing.assert_close(mine, theirs)
    key = passes.FastProducts().uuid()
    monkeypatch.setattr(products, "pays", lambda: False)
    assert passes.FastProducts().uuid() != key  # another machine may share the compiler's cache
    traced = make_fx(several)(*given)
    passes.FastProducts()(traced.graph)
    assert not any(node.target is torch.ops.fedlab.product.default for node in traced.graph.nodes)


@pytest.mark.slow  # a minute of compiling
@pytest.mark.usefixtures("fast_products")
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
@pytest.mark.parametrize("most", [1, 10**9], ids=["the gradient by oneDNN", "the update in place"])
def test_compiled_products_by_onednn_equal_eager_ones(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MIN_VALUES", 1)
    monkeypatch.setattr(passes, "MAX_UPDATE", most)
    calls: list[torch.Size] = []
    handler = passes.fallback_handler

    def counted(op: Any, **how: Any) -> Any:
        return lambda a, *rest: (calls.append(a.get_size()), handler(op, **how)(a, *rest))[1]

    monkeypatch.setattr(passes, "fallback_handler", counted)
    layer, x = nn.Linear(7, 5), torch.randn(6, 7)

    def step(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        def loss(values: tuple[Tensor, Tensor]) -> Tensor:
            return torch.nn.functional.linear(torch.nn.functional.linear(x, *values).tanh(), values[0].t()).pow(2).sum()

        value: Tensor
        (g_weight, g_bias), value = torch.func.grad_and_value(loss)((weight, bias))
        weight.sub_(0.01 * g_weight)
        bias.sub_(0.01 * g_bias)
        return value

    found = []
    with fresh_cache():  # a graph of before would not be gone through again
        for of in (graph_of(step, layer_by_layer=True), step):
            values = [p.detach().clone() for p in (layer.weight, layer.bias)]
            found.append([of(*values, x) for _ in range(3)] + values)
    for pair in zip(*found, strict=True):
        torch.testing.assert_close(*pair)
    assert len(calls) >= 4


@pytest.mark.slow  # minutes of compiling
@pytest.mark.parametrize("executor", COMPILED, ids=["loop", "cohort", "chunks", "processes"])
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
def test_compiled_steps_that_pool_and_update_in_place_equal_eager_ones(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[dict[str, Any]] = []
    poolings: list[int] = []
    replace, pool = passes._replace, pooling.pooled
    monkeypatch.setattr(passes, "MIN_VALUES", 8 * 15)  # one of the two layers
    monkeypatch.setattr(passes, "_replace", lambda match, **found: (updates.append(found), replace(match, **found)))
    monkeypatch.setattr(pooling, "pooled", lambda x, side: (poolings.append(side), pool(x, side))[1])
    fed, plain = federation(executor=executor, build=network), federation(executor=Loop(compile=False), build=network)
    with fresh_cache():  # a graph of before would not be gone through again
        for round, factor in enumerate((1.0, 0.5)):
            for each in (fed, plain):
                each.begin(round, factor)
            for mine, theirs in zip(train(fed), train(plain), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    one_by_one = isinstance(executor, Loop) or executor is COMPILED[-1]
    assert len(updates) == one_by_one and poolings


def test_two_graphs_have_code_of_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which the compiler remembers shapes: a second model's sizes would become variable, and slower or refused."""
    given: list[str] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: given.append(function.__code__.co_name))
    for _ in range(2):
        graph_of(lambda: None)
    assert len(set(given)) == 2
