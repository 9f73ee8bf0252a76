"""Floating-point operations of what PyTorch computes."""

from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def flop_counter() -> FlopCounterMode:
    """A context that counts matrix products, convolutions and attention: a multiplication and an addition are two."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward})


def _convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *rest: Any,
    **_: Any,
) -> int:
    """The count for a grouped convolution; PyTorch's own formula counts its weights' gradient once for each group."""
    _output_padding, _groups, wanted, *_outputs = rest
    positions = int(grad[0]) * int(prod((x if transposed else grad)[2:]))
    return 2 * positions * int(prod(weight)) * (bool(wanted[0]) + bool(wanted[1]))
