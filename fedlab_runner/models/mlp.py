"""Multilayer perceptron."""

from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fedlab_runner.models.base import Architecture


@dataclass(frozen=True)
class MLP(Architecture):
    """Fully connected layers with ReLU between them, on the flattened input."""

    hidden: list[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden must be a list of widths >= 1, got {self.hidden}")

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        widths = [channels * image_size**2, *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
