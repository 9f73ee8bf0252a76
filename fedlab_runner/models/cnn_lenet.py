"""The LeNet-like CNN of NIID-Bench (Li et al., ICDE 2022), section V. https://arxiv.org/abs/2102.02079"""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models.base import Architecture


@dataclass(frozen=True)
class LeNetCNN(Architecture):
    """Two 5x5 convolutions (6, 16) without padding, each with ReLU and 2x2 max pooling, hidden layers of 120 and 84,
    and the classifier. The widths are those of LeNet-5.

    It has 44,426 parameters for 28x28 grey images and 10 classes, 62,006 for 32x32 colour images.
    """

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        if image_size < 16:
            raise ValueError(f"image_size must be >= 16 (two 5x5 convolutions and two 2x2 poolings), got {image_size}")
        side = ((image_size - 4) // 2 - 4) // 2
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * side**2, 120),
            nn.ReLU(inplace=True),
            nn.Linear(120, 84),
            nn.ReLU(inplace=True),
            nn.Linear(84, num_classes),
        )
