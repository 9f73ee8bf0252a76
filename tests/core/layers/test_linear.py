"""Linear layers by oneDNN have the values and gradients of PyTorch's, wherever oneDNN takes them."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedlab_runner.core import products
from fedlab_runner.core.flops import FlopCounter
from fedlab_runner.core.layers import linear
from fedlab_runner.core.layers.linear import Linear
from fedlab_runner.core.layers.replacement import prepare

pytestmark = pytest.mark.skipif(not products.has_onednn(), reason="this build of PyTorch has no oneDNN")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Size]]:
    """The inputs that oneDNN has taken; it takes small products too, on every machine."""
    seen = list[torch.Size]()
    monkeypatch.setattr(linear, "by_onednn", lambda a, *rest: (seen.append(a.shape), products.by_onednn(a, *rest))[1])
    monkeypatch.setattr(products, "pays", lambda: True)
    for bound in ("MIN_PRODUCT", "MIN_TRAINED"):
        monkeypatch.setattr(linear, bound, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield seen


def twins(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    """The same layer from 7 to 5 values, this package's and PyTorch's."""
    theirs = nn.Linear(7, 5, bias=bias)
    ours = Linear(7, 5, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6 * float(theirs.detach().abs().max()))


INPUTS: dict[str, Callable[[], Tensor]] = {
    "matrix": lambda: torch.randn(6, 7),
    "tokens": lambda: torch.randn(3, 4, 7),
    "strided": lambda: torch.randn(7, 6).t(),
    "expanded": lambda: torch.randn(1, 7).expand(6, 7),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", INPUTS)
def test_values_and_gradients_are_pytorchs(name: str, bias: bool, calls: list[torch.Size]) -> None:
    (ours, theirs), x = twins(bias), INPUTS[name]()
    results, gradients = [], []
    for layer in (ours, theirs):
        leaf = x.clone().requires_grad_() if name == "matrix" else x.detach().requires_grad_()
        y = layer(leaf)
        results.append(y)
        gradients.append(torch.autograd.grad((y**2).sum(), (leaf, *layer.parameters())))
    close(*results)
    for pair in zip(*gradients, strict=True):
        close(*pair)
    assert calls == [x.shape, (*x.shape[:-1], 5), (5, x.numel() // 7)]  # the output, and two gradients
    with torch.no_grad():
        close(ours(x), theirs(x))


def test_only_the_gradients_that_are_asked_for_are_computed(calls: list[torch.Size]) -> None:
    (ours, theirs), x = twins(), torch.randn(6, 7)
    ours.requires_grad_(False)
    close(ours(x), theirs(x))
    assert len(calls) == 1
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(ours(leaf).sum(), leaf)
    close(g, theirs.weight.sum(0).expand(6, 7))
    assert len(calls) == 3


def test_a_gradient_of_the_gradient_is_pytorchs(calls: list[torch.Size]) -> None:
    (ours, theirs), x = twins(), torch.randn(6, 7)
    found = []
    for layer in (ours, theirs):
        first = torch.autograd.grad(layer(x).pow(3).sum(), layer.weight, create_graph=True)[0]
        found.append(torch.autograd.grad(first.pow(2).sum(), layer.weight)[0])
    close(*found)
    rows = torch.eye(5).unsqueeze(1).expand(5, 6, 5)  # five gradients at once
    many = [torch.autograd.grad(each(x), each.weight, rows, is_grads_batched=True)[0] for each in (ours, theirs)]
    close(*many)


def test_what_it_cannot_take_is_left_to_pytorch(calls: list[torch.Size]) -> None:
    (ours, theirs), x = twins(), torch.randn(6, 7)
    models = [{k: torch.stack([v, 2 * v]) for k, v in layer.state_dict().items()} for layer in (ours, theirs)]

    def loss(values: dict[str, Tensor], layer: nn.Module) -> Tensor:
        out: Tensor = torch.func.functional_call(layer, values, (x,))
        return out.pow(2).sum()

    stacked = [vmap(grad(loss), (0, None))(*pair) for pair in zip(models, (ours, theirs), strict=True)]
    close(stacked[0]["weight"], stacked[1]["weight"])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours(x[0]), theirs(x[0]))
    assert torch.equal(ours(x[: products.MIN_ROWS - 1]), theirs(x[: products.MIN_ROWS - 1]))
    assert torch.equal(ours(x[:0]), theirs(x[:0]))
    assert torch.equal(ours.double()(x.double()), theirs.double()(x.double()))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ours(torch.randn(14, 3, dtype=torch.float64))
    assert not calls


@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
def test_the_compiler_sees_pytorchs_layer(calls: list[torch.Size]) -> None:
    """Whole: where it cannot read a call, it would leave the step uncompiled, without a word."""
    (ours, theirs), x = twins(), torch.randn(6, 7)

    def step(layer: nn.Module) -> Callable[..., tuple[Tensor, ...]]:
        def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(layer, values, (x,))
            return out.pow(2).sum()

        return lambda values, x: (grad(loss)(values, x)["weight"], layer(x))

    compiled = torch.compile(step(ours), fullgraph=True, backend="eager")
    for mine, of_pytorch in zip(compiled(ours.state_dict(), x), step(theirs)(theirs.state_dict(), x), strict=True):
        assert torch.equal(mine, of_pytorch)
    assert not calls


def test_small_products_are_pytorchs(calls: list[torch.Size], monkeypatch: pytest.MonkeyPatch) -> None:
    (ours, theirs), x = twins(), torch.randn(6, 7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(linear, "MIN_TRAINED", 6 * 7 * 5 + 1)
    assert torch.equal(ours(x), theirs(x)) and not calls  # Python's part of a gradient costs more
    with torch.no_grad():
        close(ours(x), theirs(x))
    assert len(calls) == 1
    for threads, bound in ((1, 6 * 7 * 5 + 1), (2, 6 * 7 * 5)):  # each thread needs so much
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        monkeypatch.setattr(linear, "MIN_PRODUCT", bound)
        with torch.no_grad():
            assert torch.equal(ours(x), theirs(x)) and len(calls) == 1


def test_models_have_such_layers_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Linear):
        """Of a user, who may compute anything."""

    for pays in (True, False):
        monkeypatch.setattr(products, "pays", lambda pays=pays: pays)
        network = prepare(nn.Sequential(nn.Linear(3, 3), Own(3, 3)))
        assert [type(each) for each in network] == [Linear if pays else nn.Linear, Own]


def test_its_operations_are_counted(calls: list[torch.Size]) -> None:
    ours, theirs = twins()
    counted = []
    for layer in (ours, theirs):
        with FlopCounter() as counter:
            layer(torch.randn(3, 4, 7).requires_grad_()).sum().backward()
        counted.append(counter.total)
    assert counted[0] == counted[1] == 3 * 2 * 12 * 7 * 5 and calls
