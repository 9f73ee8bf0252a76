"""A Vision Transformer (Dosovitskiy et al., ICLR 2021) that trains only LoRA and the classifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from fedlab_runner.models._lora import add_lora
from fedlab_runner.models.base import Architecture
from fedlab_runner.models.timm import Timm
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import above, at_least

TARGETS = {"blocks.*.attn.qkv": 3, "blocks.*.attn.proj": 1}  # q, k and v are slices of one linear layer in timm
BACKBONE_SEED = 0  # of a random backbone


@dataclass(frozen=True)
class ViTLoRA(Architecture):
    """timm's ViT with LoRA of `rank` and scale alpha / rank on q, k, v and the attention output of every block.

    The backbone is frozen, and all models share it. A model's vector holds only LoRA and the classifier: 294,912 and
    769 C values for ViT-B/16 and rank 4. `weights` is a local .safetensors or torch state dict or one of Google's .npz
    files; `pretrained` downloads timm's weights. Without either the backbone is random but always the same, which is
    enough to measure costs and to test.
    """

    name: str
    pretrained: bool
    weights: str | None
    rank: int
    alpha: float

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, rank=self.rank)
        above(0, alpha=self.alpha)
        self._timm()  # checks the other fields

    @property
    def warning(self) -> str | None:
        if not self._from_scratch:
            return None
        return f"the frozen backbone of {self.name} is random: for accuracy set model.weights=<file>"

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        with torch.random.fork_rng(devices=[], enabled=self._from_scratch):
            if self._from_scratch:  # the backbone, which is in no model's vector, must be the same in every process
                torch.manual_seed(BACKBONE_SEED)
            model: Any = self._timm().build(channels, image_size, num_classes)
        if self._from_scratch:
            model.reset_classifier(num_classes)
        try:
            adapted = add_lora(model, TARGETS, self.rank, self.alpha)
            _check_each_block(model, adapted)
        except ValueError as error:
            raise UserError(f"name must be a Vision Transformer of timm, got '{self.name}': {error}") from error
        heads = model.get_classifier()  # a distilled network has two
        for head in heads if isinstance(heads, tuple) else (heads,):
            head.requires_grad_(True)
        network: nn.Module = model
        return network

    @property
    def _from_scratch(self) -> bool:
        return self.weights is None and not self.pretrained

    def _timm(self) -> Timm:
        return Timm(self.channels, self.image_size, self.name, self.pretrained, self.weights, 0.0, {})


def _check_each_block(model: nn.Module, adapted: Sequence[str]) -> None:
    """Raises ValueError if the attention of a block lacks a layer that the other blocks' attention has with LoRA."""
    attention = [name for name, _ in model.named_modules() if fnmatchcase(name, "blocks.*.attn")]
    wanted = [f"{name}.{target.rpartition('.')[2]}" for name in attention for target in TARGETS]
    if missing := [name for name in wanted if name not in adapted]:
        raise ValueError(f"no linear layer of {type(model).__name__} has the name {missing[0]}")
