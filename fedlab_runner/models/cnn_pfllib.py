"""The CNN of PFLlib's benchmarks (its FedAvgCNN). https://github.com/TsingZ0/PFLlib"""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models.base import Architecture
from fedlab_runner.models.cnn_mcmahan import layers


@dataclass(frozen=True)
class PFLlibCNN(Architecture):
    """FedAvg's MNIST CNN without padding: 582,026 parameters for 28x28 grey images and 10 classes."""

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        return layers(channels, image_size, num_classes, padding=0)
