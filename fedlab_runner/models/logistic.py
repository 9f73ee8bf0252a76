"""Multinomial logistic regression."""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models.base import Architecture


@dataclass(frozen=True)
class Logistic(Architecture):
    """One linear layer on the flattened input; with cross-entropy, a convex problem."""

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, num_classes))
