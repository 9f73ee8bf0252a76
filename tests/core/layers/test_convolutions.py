"""Safe convolutions have PyTorch's values and gradients, and what oneDNN gets wrong does not reach it in any model."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fedlab_runner.core.layers.convolutions import Safe, Safely, safely
from fedlab_runner.core.layers.replacement import prepare


class OwnForward(nn.Conv2d):
    """Standardises its weight, as timm's do."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.weight - self.weight.mean(), self.bias, self.stride, self.padding, 1, self.groups)


class Renamed(nn.Conv2d):
    """A subclass that changes nothing."""


CONVOLUTIONS: dict[str, tuple[type[nn.Module], int, dict[str, Any]]] = {
    "1d": (nn.Conv1d, 1, {"stride": 2}),
    "2d": (nn.Conv2d, 2, {"stride": 2}),
    "3d": (nn.Conv3d, 3, {"stride": 2}),
    "stride of 3": (nn.Conv2d, 2, {"stride": 3, "bias": False}),
    "one direction": (nn.Conv2d, 2, {"stride": (2, 1)}),
    "groups": (nn.Conv2d, 2, {"stride": 2, "groups": 3}),
    "dilation": (nn.Conv2d, 2, {"stride": 2, "dilation": 2}),
    "valid": (nn.Conv2d, 2, {"stride": 2, "padding": "valid"}),
    "padding": (nn.Conv2d, 2, {"stride": 2, "padding": 1}),
    "circular": (nn.Conv2d, 2, {"stride": 2, "padding": 1, "padding_mode": "circular"}),
    "own forward": (OwnForward, 2, {"stride": 2}),
    "renamed": (Renamed, 2, {"stride": 2}),
    "transposed": (nn.ConvTranspose2d, 2, {"stride": 2}),
}
made = pytest.mark.parametrize(("kind", "rank", "options"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)


def images(rank: int, *batch: int, side: int = 7) -> Tensor:
    """Of three channels that lie side by side."""
    x = torch.randn(*batch, *[side] * rank, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.movedim(-1, len(batch))


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = layer(x)
    return [y, *torch.autograd.grad((y**2).sum(), [x, *layer.parameters()])]


def pair(kind: type[nn.Module], options: dict[str, Any], dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    theirs = kind(3, 6, 1, **options).to(dtype)  # type: ignore[call-arg]  # a convolution
    ours = kind(3, 6, 1, **options).to(dtype)  # type: ignore[call-arg]  # the same
    ours.load_state_dict(theirs.state_dict())
    return theirs, prepare(ours)


@made
def test_values_and_gradients_are_pytorchs(kind: type[nn.Module], rank: int, options: dict[str, Any]) -> None:
    theirs, ours = pair(kind, options, torch.float64)
    for side in (7, 8, 1):
        x = images(rank, 5, side=side)
        torch.testing.assert_close(gradients(ours, x), gradients(theirs, x))


@made
def test_many_models_side_by_side(kind: type[nn.Module], rank: int, options: dict[str, Any]) -> None:
    theirs, ours = pair(kind, options, torch.float64)
    values = {k: torch.stack([p.detach(), 2 * p.detach()]) for k, p in theirs.named_parameters()}

    def side_by_side(layer: nn.Module) -> dict[str, Tensor]:
        return vmap(grad(lambda p, x: (functional_call(layer, p, (x,)) ** 2).sum()))(values, images(rank, 2, 4))

    torch.testing.assert_close(side_by_side(ours), side_by_side(theirs))


def test_what_is_prepared_stays_a_convolution() -> None:
    model = prepare(nn.Sequential(nn.Conv2d(3, 4, 1, 2), nn.Conv2d(4, 4, 3, 2), nn.Conv2d(4, 4, 1)))
    assert [type(layer) is nn.Conv2d for layer in model] == [False, True, True]
    assert isinstance(model[0], nn.Conv2d) and isinstance(model[0], Safe) and model[0].stride == (2, 2)
    before = [type(layer) for layer in model]
    assert [type(layer) for layer in prepare(model)] == before


class Unsafe(TorchDispatchMode):
    """Notes the convolutions of kernel 1 that PyTorch is given with a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default and args[1].shape[2:].numel() == 1 and max(args[3]) > 1:
            self.seen.append(args[1].shape)
        return func(*args, **(kwargs or {}))


def unsafe(model: nn.Module, x: Tensor) -> list[torch.Size]:
    with Unsafe() as mode:
        model(x)
    return mode.seen


@made
def test_pytorch_is_given_no_stride(kind: type[nn.Module], rank: int, options: dict[str, Any]) -> None:
    theirs, ours = pair(kind, options, torch.float64)
    assert unsafe(theirs, images(rank, 2))
    kept = kind is nn.ConvTranspose2d or options == {"stride": 2, "padding": 1}  # of zeros, which oneDNN adds
    assert bool(unsafe(ours, images(rank, 2))) == kept


def test_whoever_calls_it() -> None:
    x, weight = images(2, 2), torch.ones(4, 3, 1, 1, dtype=torch.float64)
    with Unsafe() as mode, Safely():
        ours = [F.conv2d(x, weight, stride=2), torch.conv2d(input=x, weight=weight, stride=(2, 1), padding=0)]
    assert not mode.seen
    torch.testing.assert_close(ours, [F.conv2d(x, weight, stride=2), F.conv2d(x, weight, stride=(2, 1))])


class Functions(nn.Module):
    """Calls convolutions itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.up = nn.Parameter(torch.randn(16, 16, 3, 3)), nn.Parameter(torch.randn(16, 16, 3, 3))

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(F.conv_transpose2d(input, self.up, stride=2, padding=1), self.weight, None, 2, 1)


# Convolutions of which oneDNN's bfloat16 result or gradient of the weights has what the memory held before: a layer,
# and the spatial sizes of its input. The input is smaller than the kernel, the result's last dimension has size 1, or
# there are three.
FAULTY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(16, 16, 3, 2, 1), (1,)),
    "2d": (lambda: nn.Conv2d(16, 16, 3, 2, 1), (1, 1)),
    "2d, narrow": (lambda: nn.Conv2d(16, 16, 5, 2, 2), (8, 1)),
    "2d, groups": (lambda: nn.Conv2d(16, 16, 3, 2, 1, groups=2), (1, 1)),
    "3d": (lambda: nn.Conv3d(16, 16, 3, 1, 1), (2, 2, 2)),
    "1d, thin": (lambda: nn.Conv1d(16, 25, 2, 3, 1), (2,)),
    "2d, thin": (lambda: nn.Conv2d(16, 25, (2, 3), 2, (1, 0)), (8, 3)),
    "2d, thin and transposed": (lambda: nn.ConvTranspose2d(16, 4, 3, 2, (1, 0)), (8, 1)),
    "3d, thin": (lambda: nn.Conv3d(16, 16, 3, 2, padding=(1, 1, 0)), (5, 5, 4)),
    "3d, thin and valid": (lambda: nn.Conv3d(16, 16, 3, padding="valid"), (8, 5, 3)),
    "3d, thin and dilated": (lambda: nn.Conv3d(16, 16, 3, 2, 1, dilation=(1, 1, 2)), (5, 5, 4)),
    "3d, thin and transposed": (lambda: nn.ConvTranspose3d(16, 16, 3, 2), (4, 5, 1)),
    "3d, wide": (lambda: nn.Conv3d(16, 1, (1, 1, 2), (3, 3, 1), (0, 0, 1)), (7, 22, 4)),
    "own forward": (lambda: OwnForward(16, 16, 3, 2, 1), (1, 1)),
    "transposed": (lambda: nn.ConvTranspose2d(16, 16, 3, 2, 1), (8, 1)),
    "functions": (Functions, (1, 1)),
}
faulty = pytest.mark.parametrize(("build", "sizes"), FAULTY.values(), ids=FAULTY)


def spoil() -> None:
    """Leaves free memory full of NaN."""
    blocks = [torch.full((n,), float("nan"), dtype=torch.bfloat16) for n in (10**2, 10**3, 10**4, 10**5, 10**6)]
    del blocks


def lowered(build: Callable[[], nn.Module], sizes: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    """A layer, prepared for bfloat16, and inputs for it; both have bfloat16's values."""
    torch.manual_seed(0)
    layer, x = build(), torch.randn(3, *sizes, 16).movedim(-1, 1)
    for value in layer.parameters():
        value.data = value.data.bfloat16().float()
    return prepare(layer, torch.bfloat16), x.bfloat16().float()


def distance(mine: Tensor, theirs: Tensor) -> float:
    """Of the values, relative to the length of the second."""
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm())


@faulty
def test_bfloat16_has_no_values_of_used_memory(build: Callable[[], nn.Module], sizes: tuple[int, ...]) -> None:
    layer, x = lowered(build, sizes)
    exact = copy.deepcopy(layer).double()
    parameters = list(layer.parameters())
    y: Tensor = exact(x.double())
    g = torch.randn_like(y).bfloat16()
    theirs = [y.detach(), *torch.autograd.grad(y, list(exact.parameters()), g.double())]
    for _ in range(5):
        spoil()
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        spoil()
        assert y.dtype == torch.bfloat16
        for mine, its in zip([y.detach(), *torch.autograd.grad(y, parameters, g)], theirs, strict=True):
            assert distance(mine, its) < 0.02


def test_float64_stays_beside_autocast() -> None:
    layer, x = lowered(lambda: nn.Conv2d(16, 16, 3, 2, 1), (1, 1))
    layer, x = layer.double(), x.double()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), F.conv2d(x, layer.weight, layer.bias, 2, 1))


@faulty
def test_the_same_for_many_models_side_by_side(build: Callable[[], nn.Module], sizes: tuple[int, ...]) -> None:
    layer, x = lowered(build, sizes)
    names, own = zip(*layer.named_parameters(), strict=True)

    def loss(values: tuple[Tensor, ...], x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y: Tensor = functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return (y.float() ** 2).sum()

    each = tuple(torch.stack([value.detach(), 2 * value.detach()]) for value in own)
    xs = torch.stack([x, x.flip(0)])
    spoil()
    found = vmap(grad(loss))(each, xs)
    for k in range(2):
        spoil()
        alone = grad(loss)(tuple(value[k] for value in each), xs[k])
        for mine, its in zip(found, alone, strict=True):
            assert distance(mine[k], its) < 0.02


def drawn(rng: random.Random) -> tuple[tuple[int, ...], list[int], dict[str, Any]] | None:
    """A random convolution: the sizes of its input and of its kernel, and its options; None where it has no result."""
    rank = rng.choice((1, 2, 2, 2, 3))
    kernel = [rng.choice((1, 2, 3, 3, 5, 7) if rank < 3 else (1, 3))] * rank
    if rank == 2 and rng.random() < 0.3:
        kernel[0] = rng.choice((1, 3))
    sizes = [rng.choice((1, 1, 2, 3, 4, 8))] * rank if rng.random() < 0.6 else rng.choices((1, 2, 4, 8), k=rank)
    padding = [rng.choice((0, k // 2)) for k in kernel]
    dilation = rng.choice((1, 1, 1, 2))
    if any(n + 2 * pad <= dilation * (k - 1) for n, pad, k in zip(sizes, padding, kernel, strict=True)):
        return None
    groups = rng.choice((1, 1, 2, 4))
    ins, outs = groups * rng.choice((1, 2, 4, 16, 32)), groups * rng.choice((1, 2, 4, 16, 25))
    how = {"stride": rng.choice((1, 2)), "padding": padding, "dilation": dilation, "groups": groups}
    return (rng.choice((1, 2, 3, 10)), ins, *sizes), [outs, ins // groups, *kernel], how


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_random_convolutions_on_used_memory(dtype: torch.dtype) -> None:
    rng, seen, generator = random.Random(0), 0, torch.Generator().manual_seed(0)
    functions = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}
    most = 1e-4 if dtype == torch.float32 else 0.02
    while seen < 5000:
        if (case := drawn(rng)) is None:
            continue
        sizes, kernel, how = case
        x, weight = (torch.randn(each, generator=generator).to(dtype) for each in (sizes, kernel))
        if len(sizes) == 4 and rng.random() < 0.7:
            x = x.contiguous(memory_format=torch.channels_last)
        exact = [each.double().requires_grad_() for each in (x, weight)]
        y: Tensor = functions[len(sizes)](*exact, None, **how)
        g = torch.randn(y.shape, generator=generator).to(dtype)
        theirs = [y.detach(), *torch.autograd.grad(y, exact, g.double())]
        leaves = [each.requires_grad_() for each in (x, weight)]
        spoil()
        y = safely(functions[len(sizes)], *leaves, None, **how)
        spoil()
        for mine, its in zip([y.detach(), *torch.autograd.grad(y, leaves, g)], theirs, strict=True):
            error = float((mine.double() - its).norm())
            assert error <= most * float(its.norm()), (sizes, kernel, how)
        seen += 1
