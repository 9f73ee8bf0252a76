"""Convolutions, computed in such a way that three faults of oneDNN on a CPU reach no model (torch 2.14, oneDNN 3.12).

- A strided convolution of kernel 1: the gradient of the weights is written past its workspace, and may be wrong or
  never end, if the input is channels-last and has fewer than 16 (AVX-512) or 8 (AVX2) channels:
  https://github.com/uxlfoundation/oneDNN/issues/6035. The safe way takes every s-th pixel, and then has stride 1. The
  values are the same, for up to twice the time (64 to 128 channels of 32 pixels, forward and backward); 3 of a
  ResNet's 20 convolutions are strided.
- In bfloat16, an input smaller than the kernel: values of the gradient of the weights are what the memory held before.
  The safe way computes in float32, as oneDNN adds up anyway, and rounds the results.
- In bfloat16 on a CPU with AMX, a result whose last dimension has size 1, and some others of three dimensions: values
  of the result, or of the gradients, are what the memory held before. The safe way is the same, for all of three
  dimensions.

Delete each where the oldest torch that this package allows has a oneDNN without that fault.
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

Ints = int | Sequence[int]  # one for all spatial dimensions, or one for each

# By number of spatial dimensions, from 1.
_CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED: tuple[Callable[..., Tensor], ...] = torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d
_CALLED = re.compile(r"\bconv(_transpose)?[123]d\b")  # a call of a convolution in source code
_KNOWN = {"torch", "fedlab_runner", "abc", "typing"}  # packages that call no convolution as a function


class Safe(_ConvNd):
    """A mixin before the class of a convolution."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolution = _CONVOLUTIONS[len(self.stride) - 1]
        return safely(convolution, input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


class SafeConv1d(Safe, nn.Conv1d):
    """`nn.Conv1d` without oneDNN's faults."""


class SafeConv2d(Safe, nn.Conv2d):
    """`nn.Conv2d` without oneDNN's faults."""


class SafeConv3d(Safe, nn.Conv3d):
    """`nn.Conv3d` without oneDNN's faults."""


# This package's class for each of PyTorch's.
_OURS: dict[Any, Any] = {nn.Conv1d: SafeConv1d, nn.Conv2d: SafeConv2d, nn.Conv3d: SafeConv3d}
_guarded: dict[Any, Any] = {}  # guarded classes by their originals


class Safely(TorchFunctionMode):
    """A context that computes all convolutions safely."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CONVOLUTIONS:
            return safely(func, *args, **kwargs)
        return transposed_safely(func, *args, **kwargs) if func in _TRANSPOSED else func(*args, **kwargs)


def safely(
    convolution: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """The convolution [b, C', ...] of input [b, C, ...]."""
    rank = weight.dim() - 2
    steps = _each(stride, rank)
    no_padding = padding == "valid" or not any((padding,) if isinstance(padding, (int, str)) else padding)
    if input.device.type == "cpu" and weight.shape[2:].numel() == 1 and no_padding and max(steps) > 1:
        taken: Any = (..., *(slice(None, None, step) for step in steps), slice(None))
        pixels = input.movedim(-1 - rank, -1)[taken]  # channels last, so that the gradient has that layout too
        return convolution(pixels.movedim(-1, -1 - rank), weight, bias, groups=groups)
    args = input, weight, bias, stride, padding, dilation, groups
    if (lower := _lowered(input)) is not None:
        last = _last_of_result(input, weight, steps, padding, dilation)
        if _is_faulty(input.shape[-rank:], last, weight, dilation):
            return _raised(convolution, lower, *args)
    return convolution(*args)


def transposed_safely(
    convolution: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """The transposed convolution [b, C', ...] of input [b, C, ...]: its result is what a convolution would read."""
    args = input, weight, bias, stride, padding, output_padding, groups, dilation
    if (lower := _lowered(input)) is not None:
        rank = weight.dim() - 2
        each = zip(
            input.shape[-rank:],
            weight.shape[2:],
            *(_each(numbers, rank) for numbers in (stride, padding, output_padding, dilation)),
            strict=True,
        )
        result = [(n - 1) * step - 2 * pad + gap * (k - 1) + more + 1 for n, k, step, pad, more, gap in each]
        if _is_faulty(result, input.shape[-1], weight, dilation):
            return _raised(convolution, lower, *args)
    return convolution(*args)


def _each(numbers: Ints, rank: int) -> tuple[int, ...]:
    """A number for each spatial dimension."""
    return (numbers,) * rank if isinstance(numbers, int) else tuple(numbers) * (rank // len(numbers))


def _lowered(input: Tensor) -> torch.dtype | None:
    """The type below float32 in which a CPU computes with this input; None if there is none."""
    if input.device.type != "cpu":
        return None
    lowers = torch.is_autocast_enabled("cpu") and input.dtype != torch.float64
    dtype = torch.get_autocast_dtype("cpu") if lowers else input.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def _last_of_result(input: Tensor, weight: Tensor, steps: Sequence[int], padding: str | Ints, dilation: Ints) -> int:
    """The size of the last dimension of a convolution's result."""
    if padding == "same":
        return input.shape[-1]
    pad, gap = (_each(numbers, len(steps))[-1] for numbers in (0 if isinstance(padding, str) else padding, dilation))
    return (input.shape[-1] + 2 * pad - gap * (weight.shape[-1] - 1) - 1) // steps[-1] + 1


def _is_faulty(sizes: Sequence[int], last: int, weight: Tensor, dilation: Ints) -> bool:
    """Whether a convolution in bfloat16 may meet a fault: its input has these sizes, its result's last dimension has
    size `last`. One of kernel 1 meets none.
    """
    gaps = _each(dilation, len(sizes))
    small = any(n < gap * (k - 1) + 1 for n, k, gap in zip(sizes, weight.shape[2:], gaps, strict=True))
    return weight.shape[2:].numel() > 1 and (small or last == 1 or len(sizes) == 3)


def _raised(convolution: Callable[..., Tensor], lower: torch.dtype, *args: Any) -> Tensor:
    """The convolution in float32 of tensors that are rounded to a lower type, as is the result."""
    with torch.autocast("cpu", enabled=False):
        return convolution(*(x.to(lower).float() if isinstance(x, Tensor) else x for x in args)).to(lower)


def safe_class(layer: _ConvNd, autocast: torch.dtype | None) -> Any:
    """The class for a convolution: a safe one if it may meet a fault with this `autocast`, else its own."""
    kind = type(layer)
    strided = set(layer.kernel_size) == {1} and set(layer.stride) != {1}
    lowered = set(layer.kernel_size) != {1} and autocast is not None
    if not (strided or lowered) or issubclass(kind, (Safe, Guarded)):
        return kind
    return _OURS[kind] if kind in _OURS and layer.padding_mode == "zeros" else guarded(kind)


class Guarded(nn.Module):
    """A mixin before the class of a module whose forward calls convolutions as functions."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module with safe convolutions. `forward` itself stays, as other code reads its graph."""
        with Safely():
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
