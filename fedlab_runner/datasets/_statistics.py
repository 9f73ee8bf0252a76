"""Checks the mean and std of a data set, or computes them from its pixels."""

import math

import torch
from torch import Tensor

from fedlab_runner.datasets.examples import CHUNK_BYTES

LEAST_STD = 1 / 255  # the smallest std of a channel: one grey level, in units of pixels / 255


def check(mean: list[float], std: list[float], channels: int) -> None:
    """Raises ValueError unless there is a finite mean and a finite std > 0 for each channel.

    Grey images may have three values of each, for a model that reads them in colour.
    """
    counts = (1, 3) if channels == 1 else (channels,)
    wanted = " or ".join(map(str, counts))
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in counts:
            raise ValueError(f"{name} must have one value for each channel ({wanted}), got {values}")
    if len(mean) != len(std):
        raise ValueError(f"std must have as many values as mean ({len(mean)}), got {std}")
    if not all(map(math.isfinite, mean)):
        raise ValueError(f"mean must be finite, got {mean}")
    if not all(0 < value < math.inf for value in std):
        raise ValueError(f"std must be finite and > 0, got {std}")


def given_or_own(
    mean: list[float] | None, std: list[float] | None, images: Tensor
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The given mean and std, or those of each channel of images [n, channels, height, width] uint8 / 255."""
    if mean is not None and std is not None:
        return tuple(mean), tuple(std)
    counts = torch.zeros(images.shape[1], 256, dtype=torch.int64)
    size = max(1, CHUNK_BYTES // max(1, images[:1].numel()))
    for part in (images[start : start + size] for start in range(0, len(images), size)):
        for channel, own in enumerate(counts):
            own += torch.bincount(part[:, channel].reshape(-1), minlength=256)
    levels, shares = torch.arange(256, dtype=torch.float64) / 255, counts / counts.sum(1, keepdim=True)
    means = (shares * levels).sum(1)
    stds = (shares * (levels - means[:, None]) ** 2).sum(1).sqrt().clamp(min=LEAST_STD)
    return tuple(means.tolist()), tuple(stds.tolist())


def check_if_given(mean: list[float] | None, std: list[float] | None, channels: int) -> None:
    """Raises ValueError unless mean and std are both null or both right."""
    if (mean is None) != (std is None):
        raise ValueError(f"std must be null where mean is null, and only there, got {std}")
    if mean is not None and std is not None:
        check(mean, std, channels)
