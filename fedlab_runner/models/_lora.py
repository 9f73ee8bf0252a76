"""Low-rank adaptation of linear layers (Hu et al., LoRA, ICLR 2022). https://arxiv.org/abs/2106.09685"""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LoRALinear(nn.Module):
    """A linear layer W x + b, frozen, plus alpha / rank * B A x, trainable.

    Each of `parts` equal slices of the output has matrices of its own: a fused projection to queries, keys and values
    has three slices. B starts at zero, so that the layer starts as `base`. A starts as torch starts a linear layer.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, parts: int = 1) -> None:
        super().__init__()
        if rank < 1 or not alpha > 0 or base.out_features % parts:
            raise ValueError(
                f"rank must be >= 1, alpha > 0 and {parts} divide {base.out_features}, got {rank}, {alpha}"
            )
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        bound = 1 / math.sqrt(base.in_features)
        self.lora_a = nn.Parameter(base.weight.new_empty(parts, rank, base.in_features).uniform_(-bound, bound))
        self.lora_b = nn.Parameter(base.weight.new_zeros(parts, base.out_features // parts, rank))

    @property
    def weight(self) -> Tensor:
        """W + alpha / rank * B A, for a network that reads the layer's weight in the place of calling it."""
        return self.base.weight + self.scale * (self.lora_b @ self.lora_a).flatten(0, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        parts, rank, _ = self.lora_a.shape
        low = F.linear(inputs, self.lora_a.flatten(0, 1)).view(*inputs.shape[:-1], parts, rank)
        change = torch.einsum("...pr,por->...po", low, self.lora_b).flatten(-2)
        base: Tensor = self.base(inputs)
        return base + self.scale * change


def add_lora(model: nn.Module, targets: Mapping[str, int], rank: int, alpha: float) -> list[str]:
    """Freezes the model and replaces each linear layer whose name matches a target by a LoRALinear.

    `targets` maps patterns of names, as in a shell (`blocks.*.attn.qkv`), to numbers of parts. If several patterns
    match, the first counts. Returns the names of the adapted layers. Raises ValueError if a pattern matches no linear
    layer.
    """
    model.requires_grad_(False)
    parts: dict[str, int] = {}
    for pattern, number in targets.items():
        matching = [k for k, m in model.named_modules() if isinstance(m, nn.Linear) and fnmatchcase(k, pattern)]
        if not matching:
            raise ValueError(f"no linear layer of {type(model).__name__} has a name like {pattern}")
        parts = dict.fromkeys(matching, number) | parts
    adapted = [name for name, _ in model.named_modules() if name in parts]
    for name in adapted:
        base = model.get_submodule(name)
        assert isinstance(base, nn.Linear)
        model.set_submodule(name, LoRALinear(base, rank, alpha, parts[name]))
    return adapted
