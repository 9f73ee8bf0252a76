"""The MNIST CNN of FedAvg (McMahan et al., AISTATS 2017), section 3. https://arxiv.org/abs/1602.05629"""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models.base import Architecture


@dataclass(frozen=True)
class McMahanCNN(Architecture):
    """Two 5x5 convolutions (32, 64), each with ReLU and 2x2 max pooling, a hidden layer of 512 and the classifier.

    Padding keeps the size, which gives the paper's 1,663,370 parameters for 28x28 grey images and 10 classes.
    """

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        if image_size < 4:
            raise ValueError(f"image_size must be >= 4 (two 2x2 poolings), got {image_size}")
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (image_size // 4) ** 2, 512),
            nn.ReLU(inplace=True),
            nn.Linear(512, num_classes),
        )
