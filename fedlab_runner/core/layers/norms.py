"""Prepares normalisation layers: as parts of a model's vector, for vmap, and with the precision of their values."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

_GIVEN = "given_dtype"  # attribute of a layer: the type of its input, during a call


def prepare_norms(module: nn.Module, autocast: torch.dtype | None) -> None:
    """Removes batch norm's counters. If autocast lowers the precision, each norm computes in that of its own values.

    Raises ValueError where batch norm's statistics are cumulative.
    """
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            if norm.momentum is None:
                raise ValueError(f"momentum of {type(norm).__name__} is null: cumulative statistics cannot be averaged")
            norm.num_batches_tracked = None  # a model's vector cannot hold an integer
        if autocast is not None and isinstance(norm, _NormBase | nn.LayerNorm | nn.GroupNorm):
            # torch's kernels take inputs of a lower precision than the layer's values and sum in the higher precision.
            # Under vmap they refuse such inputs.
            norm.register_forward_pre_hook(_raise)
            norm.register_forward_hook(_lower)


def _raise(norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    own = next((value.dtype for value in [*norm.parameters(), *norm.buffers()]), inputs[0].dtype)
    setattr(norm, _GIVEN, inputs[0].dtype)
    return (inputs[0].to(own), *inputs[1:])


def _lower(norm: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.to(getattr(norm, _GIVEN))
