"""Prepares normalisation layers: as parts of a model's vector, for vmap, and with the precision of their values.

Batch norm never goes through cuDNN. Its kernels read four values at once and stop the program (misaligned address) if a
layer's statistics, which are views of a model's vector, do not begin at a multiple of 16 bytes:
https://github.com/pytorch/pytorch/issues/195186. Under vmap and torch.compile PyTorch cannot differentiate them.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

_GIVEN = "given_dtype"  # attribute of a layer: the type of its input, during a call
_ENABLED = "cudnn_enabled"  # attribute of a layer: whether cuDNN was in use before a call


class Native(_BatchNorm):
    """A mixin before a class of batch norm: PyTorch's own kernels on every device."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[no-untyped-call]  # torch has no types for it
        # The kernels read as many values as there are channels, also behind the end of the layer's.
        if (self.affine or self.running_mean is not None) and input.shape[1] != self.num_features:
            raise ValueError(f"{type(self).__name__}({self.num_features}) got {input.shape[1]} channels")
        batch = self.training or self.running_mean is None  # by the statistics of the minibatch
        kept = not self.training or self.track_running_stats
        statistics = (self.running_mean, self.running_var) if kept else (None, None)
        how = self.weight, self.bias, *statistics, batch, self.momentum, self.eps
        # torch.batch_norm(..., cudnn_enabled=False) takes cuDNN's all the same.
        return torch.native_batch_norm(input, *how)[0]  # type: ignore[arg-type]  # it takes None too


class BatchNorm1d(Native, nn.BatchNorm1d):
    """`nn.BatchNorm1d` without cuDNN."""


class BatchNorm2d(Native, nn.BatchNorm2d):
    """`nn.BatchNorm2d` without cuDNN."""


class BatchNorm3d(Native, nn.BatchNorm3d):
    """`nn.BatchNorm3d` without cuDNN."""


# This package's class for each of PyTorch's.
_OURS: dict[Any, Any] = {nn.BatchNorm1d: BatchNorm1d, nn.BatchNorm2d: BatchNorm2d, nn.BatchNorm3d: BatchNorm3d}
BATCH_NORMS = tuple(_OURS.values())  # this package's


def prepare_norms(module: nn.Module, autocast: torch.dtype | None) -> None:
    """Removes batch norm's counters and cuDNN. If autocast lowers the precision, each norm computes in that of its own
    values.

    Raises ValueError where batch norm's statistics are cumulative.
    """
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            if norm.momentum is None:
                raise ValueError(f"momentum of {type(norm).__name__} is null: cumulative statistics cannot be averaged")
            norm.num_batches_tracked = None  # a model's vector cannot hold an integer
            if type(norm) in _OURS:
                norm.__class__ = _OURS[type(norm)]
            elif not isinstance(norm, Native):  # a class with a forward of its own
                norm.register_forward_pre_hook(_without_cudnn)
                norm.register_forward_hook(_with_cudnn, always_call=True)
        if autocast is not None and isinstance(norm, _NormBase | nn.LayerNorm | nn.GroupNorm):
            # torch's kernels take inputs of a lower precision than the layer's values and sum in the higher precision.
            # Under vmap they refuse such inputs.
            norm.register_forward_pre_hook(_raise, with_kwargs=True)
            norm.register_forward_hook(_lower)


def _without_cudnn(norm: nn.Module, inputs: Any) -> None:
    if not torch.compiler.is_compiling():
        setattr(norm, _ENABLED, torch.backends.cudnn.enabled)
        torch.backends.cudnn.enabled = False


def _with_cudnn(norm: nn.Module, inputs: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        torch.backends.cudnn.enabled = getattr(norm, _ENABLED)


def _raise(norm: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The first argument, by place or by name, is the layer's input."""
    name, given = next(iter([*enumerate(inputs), *named.items()]))
    own = next((value.dtype for value in [*norm.parameters(), *norm.buffers()]), given.dtype)
    setattr(norm, _GIVEN, given.dtype)
    return ((given.to(own), *inputs[1:]), named) if inputs else ((), named | {str(name): given.to(own)})


def _lower(norm: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.to(getattr(norm, _GIVEN))
