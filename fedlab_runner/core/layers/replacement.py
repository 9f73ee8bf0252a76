"""Replaces PyTorch's layers by this package's in every model."""

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from fedlab_runner.core import products
from fedlab_runner.core.layers.convolutions import (
    Guarded,
    SafeConv1d,
    SafeConv2d,
    SafeConv3d,
    calls_convolutions,
    guarded,
    safe_class,
)
from fedlab_runner.core.layers.linear import Linear
from fedlab_runner.core.layers.norms import BATCH_NORMS
from fedlab_runner.core.layers.pooling import Pooling

CONVOLUTIONS = (SafeConv1d, SafeConv2d, SafeConv3d)  # this package's convolutions
OURS = (Pooling, Linear, *CONVOLUTIONS, *BATCH_NORMS)  # all layers of this package


def cast(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Moves a module, in place, to a device, its floats to `dtype` and its complex numbers to that precision.

    `nn.Module.to` would drop imaginary parts.
    """

    def moved(value: Tensor) -> Tensor:
        own = dtype if value.is_floating_point() else dtype.to_complex() if value.is_complex() else value.dtype
        return value.to(device, own)

    module._apply(moved)  # type: ignore[no-untyped-call]  # torch has no types for it
    return module


def prepare(module: nn.Module, autocast: torch.dtype | None = None) -> nn.Module:
    """Replaces, in place, the module's max poolings by `Pooling`, the convolutions that may meet a fault of oneDNN in
    the precision of `autocast` (None: their own), and its linear layers by `Linear` where that pays.

    Raises ValueError if the module has layers that still have no sizes or trains complex parameters.
    """
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise ValueError("the model has layers that still have no sizes, such as LazyLinear: give them sizes")
    if name := next((name for name, p in module.named_parameters() if p.requires_grad and p.is_complex()), None):
        raise ValueError(
            f"the model's parameter {name} is complex, and a model's vector has floats: make it a float parameter "
            "[..., 2], and compute with torch.view_as_complex(...)"
        )
    for part in module.modules():
        if type(part) is nn.MaxPool2d:
            part.__class__ = Pooling
        elif type(part) is nn.Linear and products.pays():
            part.__class__ = Linear
        elif isinstance(part, _ConvNd):
            part.__class__ = safe_class(part, autocast)
        elif not isinstance(part, Guarded) and calls_convolutions(type(part)):
            part.__class__ = guarded(type(part))
    return module
