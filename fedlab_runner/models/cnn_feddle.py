"""The CNN that Feddle trains from scratch: three convolutions, one pooling module, two linear layers."""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import one_of


@dataclass(frozen=True)
class FeddleCNN(Architecture):
    """Three 3x3 convolutions (32, 64, 64) with ReLU, 2x2 max pooling, a hidden layer of 128 and the classifier.

    The paper lists one pooling layer but not its place. `pool` puts it after `each` convolution (8 million
    multiplications for a 32x32 colour image) or after the `last` convolution alone (60 million).
    """

    pool: str

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(("each", "last"), pool=self.pool)

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        factor = 8 if self.pool == "each" else 2
        if image_size < factor:
            raise ValueError(f"image_size must be >= {factor} with pool '{self.pool}', got {image_size}")
        layers: list[nn.Module] = []
        for before, after in ((channels, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(inplace=True)]
            if self.pool == "each":
                layers.append(nn.MaxPool2d(2))
        if self.pool == "last":
            layers.append(nn.MaxPool2d(2))
        features = 64 * (image_size // factor) ** 2
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(features, 128), nn.ReLU(inplace=True), nn.Linear(128, num_classes)
        )
