"""From stored inputs to the inputs of a model."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Normalize(NamedTuple):
    """Turns stored inputs (uint8 pixels or float features) into the inputs of a model."""

    shift: Tensor | None  # [channels, 1, 1], in units of the stored values
    scale: Tensor | None

    @staticmethod
    def of(
        mean: Sequence[float] | None, std: Sequence[float] | None, dtype: torch.dtype, device: torch.device
    ) -> "Normalize":
        """The normalisation by each channel's mean and standard deviation, in units of [0, 1]; None: values stay."""
        if mean is None or std is None:
            return Normalize(None, None)
        shift, scale = (torch.tensor(v, dtype=dtype, device=device).view(-1, 1, 1) * 255 for v in (mean, std))
        return Normalize(shift, 1 / scale)

    def __call__(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        images = inputs.dim() == 4  # channels last: convolutions and pooling are up to 30 % faster on a CPU
        inputs = inputs.to(dtype, memory_format=torch.channels_last if images else torch.preserve_format)
        if images:  # with one channel, only strides tell a convolution which layout to produce
            n, c, h, w = inputs.shape
            inputs = inputs.as_strided((n, c, h, w), (c * h * w, 1, c * w, c))
        return inputs if self.shift is None or self.scale is None else inputs.sub_(self.shift).mul_(self.scale)
