"""Linear layers whose large products oneDNN computes, on processors for which PyTorch's library of products is slow."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from fedlab_runner.core.transforms import computes_plainly
from fedlab_runner.utils.system import processor

MIN_PRODUCT = 3_000_000  # multiplications: in a smaller product oneDNN gains less than its call costs
MIN_TRAINED = 5_000_000  # of a layer whose gradient is taken, which costs calls of Python
MIN_ROWS = 4  # of the inputs: with fewer, oneDNN orders the weights anew for too little work


def has_onednn() -> bool:
    """Whether this build of PyTorch has oneDNN."""
    found: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no types for it
    return found


@lru_cache(maxsize=1)
def pays() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than PyTorch does on this machine.

    PyTorch has MKL for them, which has no AVX-512 for AMD's processors. oneDNN, which PyTorch has for convolutions, has
    it, and takes half the time.
    """
    return has_onednn() and torch.backends.cpu.get_cpu_capability() == "AVX512" and "AMD" in processor()


def gains(rows: int, inner: int, columns: int) -> bool:
    """Whether oneDNN gains in a product [rows, inner] @ [inner, columns] where it pays at all."""
    return rows >= MIN_ROWS and rows * inner * columns >= MIN_PRODUCT


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a [.., n] @ b [n, m] + bias [m] of float32 on a CPU, by oneDNN. Autograd does not pass through it."""
    return _forward(a, b.t(), bias)


class Linear(nn.Linear):
    """PyTorch's linear layer, with the same values and gradients up to rounding."""

    def forward(self, input: Tensor) -> Tensor:
        trained = torch.is_grad_enabled()
        if input.numel() * self.out_features < (MIN_TRAINED if trained else MIN_PRODUCT) or not _takes(self, input):
            return super().forward(input)
        of = _Linear.apply if trained else _forward
        result: Tensor = of(input, self.weight, self.bias)
        return result


def _takes(layer: nn.Linear, inputs: Tensor) -> bool:
    floats = inputs.dtype == layer.weight.dtype == torch.float32 and inputs.device.type == "cpu"
    rows = inputs.numel() // max(1, layer.in_features)
    right = inputs.dim() > 1 and inputs.shape[-1] == layer.in_features and rows >= MIN_ROWS
    return floats and right and computes_plainly() and not torch.is_autocast_enabled("cpu")


def _forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _forward(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        (g,) = grads
        # A gradient of the gradient, or many at once, need operations that PyTorch knows.
        times = torch.matmul if torch.is_grad_enabled() or not computes_plainly() else product
        rows = g.reshape(-1, g.shape[-1])
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            times(g, weight) if of_inputs else None,
            times(rows.t(), inputs.reshape(-1, inputs.shape[-1])) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )
