"""Strided convolutions of kernel 1 have PyTorch's values and gradients, and none reaches oneDNN in any model."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fedlab_runner.core.layers.replacement import prepare
from fedlab_runner.core.layers.strided import ByPixels, Strided


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
    assert isinstance(model[0], nn.Conv2d) and isinstance(model[0], Strided) and model[0].stride == (2, 2)
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
    with Unsafe() as mode, ByPixels():
        ours = [F.conv2d(x, weight, stride=2), torch.conv2d(input=x, weight=weight, stride=(2, 1), padding=0)]
    assert not mode.seen
    torch.testing.assert_close(ours, [F.conv2d(x, weight, stride=2), F.conv2d(x, weight, stride=(2, 1))])
