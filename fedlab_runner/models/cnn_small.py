"""A small convolutional network for quick experiments."""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models.base import Architecture


@dataclass(frozen=True)
class SmallCNN(Architecture):
    """Two 3x3 convolutions (16, 32), each with ReLU and 2x2 max pooling, and a linear layer.

    It has 9,930 parameters for 16x16 grey images and 10 classes, and trains in seconds on a CPU.
    """

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        if image_size < 4:
            raise ValueError(f"image_size must be >= 4 (two 2x2 poolings), got {image_size}")
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (image_size // 4) ** 2, num_classes),
        )
