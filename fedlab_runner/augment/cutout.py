"""Cutout (DeVries and Taylor, 2017)

https://arxiv.org/abs/1708.04552
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.augment.crop_flip import CropFlip
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class Cutout(CropFlip):
    """`crop_flip`, then a black square of `size` pixels around a random pixel, clipped at the border of the image.

    The paper cuts the square out of normalised images, so that the square has the mean of the training images.
    """

    size: int

    numbers = CropFlip.numbers + 2

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, size=self.size)

    def num_views(self, shape: torch.Size) -> int:
        views, (height, width) = super().num_views(shape), shape[1:]
        if self.size >= (most := 2 * max(height, width) - 1):
            raise ValueError(
                f"size must be less than {most}, as any square of that size covers all of {height}x{width} pixels, got "
                f"{self.size}"
            )
        return views * height * width

    def views(self, drawn: np.ndarray, shape: torch.Size) -> np.ndarray:
        row, column = (drawn[:, CropFlip.numbers :] * shape[1:]).astype(np.int64).T
        views: np.ndarray = (super().views(drawn, shape) * shape[1] + row) * shape[2] + column
        return views

    def apply(self, inputs: Tensor, views: Tensor) -> Tensor:
        height, width = inputs.shape[2:]
        rows = self._cut(views // width % height, height).unsqueeze(2)
        columns = self._cut(views % width, width).unsqueeze(1)
        return super().apply(inputs, views // (height * width)).masked_fill((rows & columns).unsqueeze(1), 0)

    def _cut(self, centre: Tensor, length: int) -> Tensor:
        """A mask [n, length] of the pixels, along one side, that the squares around the centres [n] cover."""
        first = (centre - self.size // 2).unsqueeze(1)
        places = torch.arange(length, device=centre.device)
        return (places >= first) & (places < first + self.size)
