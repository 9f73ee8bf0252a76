"""Replaces PyTorch's layers by this package's in every model."""

import torch
from torch import nn
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


def prepare(module: nn.Module, autocast: torch.dtype | None = None) -> nn.Module:
    """Replaces, in place, the module's max poolings by `Pooling`, the convolutions that may meet a fault of oneDNN in
    the precision of `autocast` (None: their own), and its linear layers by `Linear` where that pays.

    Raises ValueError if the module has layers that still have no sizes.
    """
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise ValueError("the model has layers that still have no sizes, such as LazyLinear: give them sizes")
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
