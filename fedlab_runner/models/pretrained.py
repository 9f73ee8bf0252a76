"""A model that begins from weights in a file: those of an earlier run, or of the same network trained elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedlab_runner.models._torch import load_weights
from fedlab_runner.models.base import Architecture, built

# Where to get weights, for messages.
HINT = "a run with logger.save_model=true leaves model.safetensors in its folder"


@dataclass(frozen=True)
class Pretrained(Architecture):
    """The model `base` with the weights of a local file.

    `weights` is the model.safetensors of a run with one model, or a safetensors or torch state dict of the same
    network. The file's classifier, the last linear layer, is kept if it has as many classes as the data; otherwise the
    classifier is new. Nothing else of the network may differ. `channels` and `image_size` are those of `base`.
    """

    base: Architecture
    weights: str

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("channels", "image_size"):
            if (own := getattr(self, name)) != (inner := getattr(self.base, name)):
                raise ValueError(f"{name} must be that of the base, {inner}, got {own}: set model.base.{name}")

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        model = built(self.base, channels, image_size, num_classes)
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        load_weights(model, linear[-1] if linear else "", self.weights, "model.base", HINT)
        return model

    def description(
        self,
        module: nn.Module,
        image_size: int,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        class_names: Sequence[str],
    ) -> dict[str, Any] | None:
        return self.base.description(module, image_size, mean, std, class_names)
