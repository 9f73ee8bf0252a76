"""Labelled examples in memory, as each data set loads them."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.utils.validate import within

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue: ITU-R BT.601, as in Pillow's convert("L")
MAX_SIZE = 4096  # channels, or pixels of a side, of converted images
CHUNK_BYTES = 2**26  # of images that are converted at a time, so that only the result is large


class Examples(NamedTuple):
    """n labelled examples."""

    inputs: Tensor  # [n, channels, side, side] uint8 (images) or [n, features] finite float32
    targets: Tensor  # [n] int64, class indices: what models learn
    strata: Tensor  # [n] int64, the classes that partitions see: the targets, or finer labels of the data set
    users: Tensor | None  # [n] int64, the natural client of each example
    present: Tensor | None = None  # [n, d0] bool, the feature blocks that each example has; None: all

    def select(self, rows: Tensor) -> "Examples":
        """The examples that a mask [n] or indices choose."""
        users, present = (None if each is None else each[rows] for each in (self.users, self.present))
        return Examples(self.inputs[rows], self.targets[rows], self.strata[rows], users, present)

    def lent(self) -> "Examples":
        """The examples with copies of all but the inputs, so that a write changes no other owner's labels."""
        users, present = (None if each is None else each.clone() for each in (self.users, self.present))
        return self._replace(targets=self.targets.clone(), strata=self.strata.clone(), users=users, present=present)


@dataclass(frozen=True)
class Data:
    """A data set: the clients' examples, the test set, and the normalisation of pixels."""

    train: Examples
    test: Examples
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None  # of inputs / 255, for each channel; None for features
    std: tuple[float, ...] | None
    num_held_out: int = 0  # test examples that `hold_out` has taken

    def hold_out(self, size: int, seed: int) -> tuple[Examples, "Data"]:
        """The next `size` test examples in an order of the whole test set drawn from `seed`, and the data without
        them: two calls take together what one call takes.
        """
        taken, count = self.num_held_out, len(self.test.targets)
        order = torch.from_numpy(generator(seed, Purpose.SERVER_DATA).permutation(taken + count))
        here = order[taken:].sort().values  # the rows of the whole test set that this one still has
        mine = torch.searchsorted(here, order[taken : taken + size])
        rest = torch.searchsorted(here, order[taken + size :].sort().values)
        return self.test.select(mine), replace(self, test=self.test.select(rest), num_held_out=taken + size)

    def thinned(self, fraction: float, seed: int) -> "Data":
        """The data with the first round(fraction * n) training examples, but at least one, in an order drawn from
        `seed`, so that a larger fraction contains a smaller one.
        """
        n = len(self.train.targets)
        size = max(1, round(fraction * n))
        if size >= n:
            return self
        order = torch.from_numpy(generator(seed, Purpose.TRAIN_FRACTION).permutation(n))
        return replace(self, train=self.train.select(order[:size].sort().values))

    def fit(self, channels: int | None, image_size: int | None) -> "Data":
        """The data in the form that a model reads: images of `channels` and `image_size` pixels square (None: no
        change).

        This resizes images once, in uint8, bilinear with antialiasing. It replicates one channel, mean and std to
        three, unless mean and std have three values. It converts three channels, mean and std to one by ITU luma; the
        luma of the stds is exact for fully correlated channels and slightly too large for photographs. Raises
        ValueError for feature vectors and for any other change of channels.
        """
        within(f"[1, {MAX_SIZE}]", channels=channels, image_size=image_size)
        for name, value in (("channels", channels), ("image_size", image_size)):
            if value is not None and self.train.inputs.ndim != 4:
                raise ValueError(f"{name} must be null for feature vectors (the model wants images), got {value}")
        if self.train.inputs.ndim != 4:
            return self
        assert self.mean is not None and self.std is not None
        have = self.train.inputs.shape[1]
        mean, std = self.mean, self.std
        if channels is not None and channels != have:
            if (have, channels) == (1, 3):
                mean, std = (mean, std) if len(mean) == 3 else (mean * 3, std * 3)
            elif (have, channels) == (3, 1):
                mean, std = (_luma(mean),), (_luma(std),)
            else:
                raise ValueError(f"channels must be {have} as in the data set (or 1 for 3, or 3 for 1), got {channels}")
        if len(mean) != (channels or have):
            raise ValueError(f"channels must be 3, as many as dataset.mean has values, got {channels}")
        train, test = (
            examples._replace(inputs=_convert(examples.inputs, channels or have, image_size))
            for examples in (self.train, self.test)
        )
        return replace(self, train=train, test=test, mean=mean, std=std)


def _luma(of_rgb: tuple[float, ...]) -> float:
    return sum(weight * value for weight, value in zip(LUMA, of_rgb, strict=True))


def _convert(images: Tensor, channels: int, image_size: int | None) -> Tensor:
    """uint8 [n, c, height, width] to [n, channels, image_size, image_size], a chunk at a time."""
    n, have, height, width = images.shape
    size = (height, width) if image_size is None else (image_size, image_size)
    if channels == have and size == (height, width):
        return images
    out = images.new_empty(n, channels, *size)
    chunk = max(1, CHUNK_BYTES // (max(have, channels) * max(height * width, size[0] * size[1])))
    for start in range(0, n, chunk):
        source = images[start : start + chunk]
        if channels < have:
            red, green, blue = source.to(torch.int32).unbind(1)
            # 16-bit fixed point, rounded. The weights sum to 2**16, so that white stays 255
            source = ((19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16).to(torch.uint8).unsqueeze(1)
        if size != (height, width):
            single = size == (1, 1)  # torch's kernel for bytes fails for a single pixel of three channels
            source = source.to(torch.float32) if single else source.contiguous()
            source = F.interpolate(source, size, mode="bilinear", antialias=True)
            source = source.round().to(torch.uint8) if single else source
        out[start : start + chunk] = source  # broadcasts grey to three channels
    return out


def digest_of(arrays: Iterable[Tensor | np.ndarray | None]) -> str:
    """The CRC-32 of all shapes, types and values, as eight hex digits. It finds damage, but not forgery."""
    sum = 0
    for each in arrays:
        array = each.cpu().numpy() if isinstance(each, Tensor) else each
        if array is not None:
            sum = zlib.crc32(repr((array.shape, array.dtype.str)).encode(), sum)
            sum = zlib.crc32(np.ascontiguousarray(array).data.cast("B") if array.size else b"", sum)
    return f"{sum:08x}"
