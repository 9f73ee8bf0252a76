"""Multinomial logistic regression."""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models.base import Architecture


@dataclass(frozen=True)
class Logistic(Architecture):
    """One linear layer on the flattened input. With cross-entropy the problem is convex.

    With `reference` the logit of the first class is 0, and the layer has an output for each other class. Two classes
    then have one output z, and cross-entropy is the binary cross-entropy of sigmoid(z). Without `reference` they have
    two outputs, whose difference moves twice as fast and starts from a wider distribution.
    """

    reference: bool

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        inputs = channels * image_size**2
        if self.reference:
            return nn.Sequential(nn.Flatten(), nn.Linear(inputs, num_classes - 1), nn.ZeroPad1d((1, 0)))
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, num_classes))
