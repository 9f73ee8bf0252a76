"""The MNIST CNN of FedAvg (McMahan et al., AISTATS 2017), section 3. https://arxiv.org/abs/1602.05629"""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models.base import Architecture


@dataclass(frozen=True)
class McMahanCNN(Architecture):
    """Two 5x5 convolutions (32, 64) that keep the size, each with ReLU and 2x2 max pooling, a hidden layer of 512, and
    the classifier: 1,663,370 parameters for 28x28 grey images and 10 classes, as in the paper.
    """

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        return layers(channels, image_size, num_classes, padding=2)


def layers(channels: int, image_size: int, num_classes: int, padding: int) -> nn.Module:
    """The network with `padding` pixels of zeros around the inputs of both convolutions."""
    least = 16 - 6 * padding  # each convolution removes 4 - 2 padding pixels, each pooling halves the side
    if image_size < least:
        raise ValueError(f"image_size must be >= {least} (two 5x5 convolutions and poolings), got {image_size}")
    side = ((image_size - 4 + 2 * padding) // 2 - 4 + 2 * padding) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=padding),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=padding),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side**2, 512),
        nn.ReLU(inplace=True),
        nn.Linear(512, num_classes),
    )
