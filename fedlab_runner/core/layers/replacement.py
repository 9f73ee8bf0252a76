"""Replaces PyTorch's layers by this package's in every model."""

from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from fedlab_runner.core import products
from fedlab_runner.core.layers.linear import Linear
from fedlab_runner.core.layers.norms import BATCH_NORMS
from fedlab_runner.core.layers.pooling import Pooling
from fedlab_runner.core.layers.strided import (
    Guarded,
    StridedConv1d,
    StridedConv2d,
    StridedConv3d,
    calls_convolutions,
    guarded,
    taking_pixels,
)

CONVOLUTIONS = (StridedConv1d, StridedConv2d, StridedConv3d)  # this package's strided convolutions
OURS = (Pooling, Linear, *CONVOLUTIONS, *BATCH_NORMS)  # all layers of this package


def prepare(module: nn.Module) -> nn.Module:
    """Replaces, in place, the module's max poolings by `Pooling`, its strided convolutions of kernel 1, and its linear
    layers by `Linear` where that pays.

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
            part.__class__ = taking_pixels(part)
        elif not isinstance(part, Guarded) and calls_convolutions(type(part)):
            part.__class__ = guarded(type(part))
    return module
