"""Strided convolutions of kernel 1, computed safely: every s-th pixel, then a convolution of stride 1.

The values are the same. oneDNN's weight gradient of a strided convolution writes past its workspace, and may be wrong
or never end, if the input is channels-last and has fewer than 16 (AVX-512) or 8 (AVX2) channels:
https://github.com/uxlfoundation/oneDNN/issues/6035. The safe way takes up to twice as long (64 to 128 channels of 32
pixels, forward and backward); 3 of a ResNet's 20 convolutions are strided. Delete this module when the oldest torch
that this package allows has a oneDNN without that fault.
"""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

# By number of spatial dimensions, from 1.
_CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (torch.conv1d, torch.conv2d, torch.conv3d)
_CALLED = re.compile(r"\bconv[123]d\b")  # a call of a convolution in source code
_KNOWN = {"torch", "fedlab_runner", "abc", "typing"}  # packages without calls of strided convolutions of kernel 1


class Strided(_ConvNd):
    """A mixin before the class of a convolution of kernel 1 with a stride above 1."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolution = _CONVOLUTIONS[len(self.stride) - 1]
        return by_pixels(convolution, input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


class StridedConv1d(Strided, nn.Conv1d):
    """`nn.Conv1d` of kernel 1, by every s-th value."""


class StridedConv2d(Strided, nn.Conv2d):
    """`nn.Conv2d` of kernel 1, by every s-th pixel."""


class StridedConv3d(Strided, nn.Conv3d):
    """`nn.Conv3d` of kernel 1, by every s-th voxel."""


# This package's class for each of PyTorch's.
_OURS: dict[Any, Any] = {nn.Conv1d: StridedConv1d, nn.Conv2d: StridedConv2d, nn.Conv3d: StridedConv3d}
_guarded: dict[Any, Any] = {}  # guarded classes by their originals


class ByPixels(TorchFunctionMode):
    """A context that computes all convolutions `by_pixels`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return by_pixels(func, *args, **kwargs) if func in _CONVOLUTIONS else func(*args, **kwargs)


def by_pixels(
    convolution: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """The convolution [b, C', ...] of input [b, C, ...]; by every s-th pixel on a CPU with kernel 1 and no padding."""
    rank = weight.dim() - 2
    steps = (stride,) * rank if isinstance(stride, int) else tuple(stride) * (rank // len(stride))
    no_padding = padding == "valid" or not any((padding,) if isinstance(padding, (int, str)) else padding)
    if input.device.type == "cpu" and weight.shape[2:].numel() == 1 and no_padding and max(steps) > 1:
        taken: Any = (..., *(slice(None, None, step) for step in steps), slice(None))
        pixels = input.movedim(-1 - rank, -1)[taken]  # channels last, so that the gradient has that layout too
        return convolution(pixels.movedim(-1, -1 - rank), weight, bias, groups=groups)
    return convolution(input, weight, bias, stride, padding, dilation, groups)


def taking_pixels(convolution: _ConvNd) -> Any:
    """The class for a convolution: a safe one if it is strided and of kernel 1, else its own."""
    kind = type(convolution)
    if set(convolution.kernel_size) != {1} or set(convolution.stride) == {1} or issubclass(kind, (Strided, Guarded)):
        return kind
    return _OURS[kind] if kind in _OURS and convolution.padding_mode == "zeros" else guarded(kind)


class Guarded(nn.Module):
    """A mixin before the class of a module whose forward calls convolutions as functions."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module with convolutions `by_pixels`. `forward` itself stays, as other code reads its graph."""
        with ByPixels():
            return super().__call__(*args, **kwargs)


def guarded(kind: type[nn.Module]) -> Any:
    """The class `kind` behind `Guarded`: the same class object at each call."""
    if kind not in _guarded:
        _guarded[kind] = type(kind.__name__, (Guarded, kind), {"__doc__": kind.__doc__})
    return _guarded[kind]


def calls_convolutions(kind: type[nn.Module]) -> bool:
    """Whether a module's class may call convolutions as functions: its source, or that of a base, names them or is
    unknown.

    Classes of the packages in `_KNOWN` do not.
    """
    return any(_names_convolutions(each.__module__) for each in kind.__mro__[:-1] if not issubclass(each, Guarded))


@cache
def _names_convolutions(module: str) -> bool:
    if module.partition(".")[0] in _KNOWN:
        return False
    try:
        return _CALLED.search(inspect.getsource(sys.modules[module])) is not None
    except (KeyError, OSError, TypeError):
        return True
