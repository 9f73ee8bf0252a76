"""Shifted and mirrored images, the usual augmentation for CIFAR (He et al., CVPR 2016, section 4.2)

https://arxiv.org/abs/1512.03385
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.augment.base import Augment
from fedlab_runner.utils.validate import at_least, within


@dataclass(frozen=True)
class CropFlip(Augment):
    """Pads the image with `padding` black pixels on each side, crops a random part of its own size and mirrors the part
    with probability `flip`.
    """

    padding: int
    flip: float

    numbers: ClassVar[int] = 3

    def __post_init__(self) -> None:
        at_least(0, padding=self.padding)
        within("[0, 1]", flip=self.flip)

    def num_views(self, shape: torch.Size) -> int:
        if len(shape) != 3:
            raise ValueError(f"augment must be none where examples are not images, got shape {list(shape)}")
        if self.padding >= min(shape[1:]):
            raise ValueError(f"padding must be less than the images' {min(shape[1:])} pixels, got {self.padding}")
        return 2 * self._places**2

    def views(self, drawn: np.ndarray, shape: torch.Size) -> np.ndarray:
        top, left = (drawn[:, :2] * self._places).astype(np.int64).T
        views: np.ndarray = ((drawn[:, 2] < self.flip) * self._places + top) * self._places + left
        return views

    def apply(self, inputs: Tensor, views: Tensor) -> Tensor:
        n, channels, height, width = inputs.shape
        top, left, flipped = self.parts(views)
        across, down = (torch.arange(size, device=inputs.device) for size in (width, height))
        rows = top.unsqueeze(1) + down  # [n, height]
        columns = left.unsqueeze(1) + torch.where(flipped.unsqueeze(1), width - 1 - across, across)  # [n, width]
        pixels = rows.unsqueeze(2) * (width + 2 * self.padding) + columns.unsqueeze(1)
        padded = F.pad(inputs, [self.padding] * 4).flatten(2)
        return padded.gather(2, pixels.view(n, 1, -1).expand(-1, channels, -1)).view(inputs.shape)

    def parts(self, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The top and left pixel of each view [n] in the padded image, and whether the view is mirrored."""
        return views // self._places % self._places, views % self._places, views >= self._places**2

    @property
    def _places(self) -> int:
        """The number of places along a side of the padded image where a part can begin."""
        return 2 * self.padding + 1
