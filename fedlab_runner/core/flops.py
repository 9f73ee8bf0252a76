"""Floating-point operations of what PyTorch computes."""

import logging
import sys
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedlab_runner.core.products import has_onednn


def _formulas() -> tuple[Any, Any]:
    """PyTorch's formulas. Their module would import Triton, a compiler for GPUs, which takes 0.2 s."""
    hidden, log = "triton" not in sys.modules, logging.getLogger("torch.utils.flop_counter")
    level = log.level
    try:
        if hidden:
            sys.modules["triton"] = None  # type: ignore[assignment]  # the import system's word for "not there"
            log.setLevel(logging.ERROR)  # it would log that Triton is missing
        from torch.utils.flop_counter import flop_registry, shape_wrapper
    finally:
        if hidden:
            del sys.modules["triton"]
            log.setLevel(level)
    return flop_registry, shape_wrapper


flop_registry, shape_wrapper = _formulas()


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """A context that counts matrix products, convolutions and attention: a multiplication and an addition are two.

    PyTorch's `FlopCounterMode` counts the same, but its first use imports the compiler, which takes a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nor for this
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in this context; torch would import its compiler to make sure

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, formula = kwargs or {}, _FORMULAS.get(func._overloadpacket)
        if formula is None and func not in _WHOLE:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            _WHOLE.add(func)
        out = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=out)
        return out


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


def _linear(x: Any, weight: Any, *_rest: Any, **_: Any) -> int:
    """The count for a product by oneDNN (`core.products`), which has no formula in PyTorch."""
    return 2 * int(prod(x)) * int(weight[0])


# Formulas that replace PyTorch's, or that it lacks.
_OWN: dict[Any, Any] = {torch.ops.aten.convolution_backward: _convolution_backward}
if has_onednn():
    _OWN[torch.ops.mkldnn._linear_pointwise] = _linear
# Functions from the arguments and results of a kind of call to its operations.
_SHAPED = {call: shape_wrapper(count) for call, count in _OWN.items()}
_FORMULAS = flop_registry | _SHAPED
_WHOLE: set[Any] = set()  # operations that do not consist of others, as far as they were met
