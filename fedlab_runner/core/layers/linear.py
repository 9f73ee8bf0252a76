"""Linear layers whose large products oneDNN computes where that pays."""

from typing import Any

import torch
from torch import Tensor, nn

from fedlab_runner.core.products import MIN_PRODUCT, MIN_ROWS, by_onednn
from fedlab_runner.core.transforms import computes_plainly

# Multiplications for each thread of a layer whose gradient is taken, which costs calls of Python.
MIN_TRAINED = 5_000_000


class Linear(nn.Linear):
    """PyTorch's linear layer, with the same values and gradients up to rounding."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # the compiler's passes choose
            return super().forward(input)
        trained = torch.is_grad_enabled()
        least = (MIN_TRAINED if trained else MIN_PRODUCT) * torch.get_num_threads()
        if input.numel() * self.out_features < least or not _takes(self, input):
            return super().forward(input)
        if not trained:
            return by_onednn(input, self.weight.t(), self.bias)
        result: Tensor = _Linear.apply(input, self.weight, self.bias)
        return result


def _takes(layer: nn.Linear, inputs: Tensor) -> bool:
    floats = inputs.dtype == layer.weight.dtype == torch.float32 and inputs.device.type == "cpu"
    rows = inputs.numel() // max(1, layer.in_features)
    right = inputs.dim() > 1 and inputs.shape[-1] == layer.in_features and rows >= MIN_ROWS
    return floats and right and computes_plainly() and not torch.is_autocast_enabled("cpu")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return by_onednn(inputs, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        (g,) = grads
        # A gradient of the gradient, or many at once, need operations that PyTorch knows.
        times = torch.matmul if torch.is_grad_enabled() or not computes_plainly() else by_onednn
        rows = g.reshape(-1, g.shape[-1])
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            times(g, weight) if of_inputs else None,
            times(rows.t(), inputs.reshape(-1, inputs.shape[-1])) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )
