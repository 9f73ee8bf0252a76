"""What data sets of photographs share."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from fedlab_runner.datasets import _files, _statistics
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.datasets.image_cache import decode


def check(image_size: int, mean: list[float], std: list[float]) -> None:
    """Raises ValueError, named after the field, for a size or statistics that cannot be."""
    if image_size < 1:
        raise ValueError(f"image_size must be at least 1, got {image_size}")
    _statistics.check(mean, std, channels=3)


def read(paths: Sequence[Path], labels: Sequence[int], image_size: int, layout: str) -> Examples:
    """Colour photographs, resized to `image_size` pixels square as they are read."""
    images = decode(paths, (3, image_size, image_size), partial(_files.need, layout=layout))
    targets = torch.tensor(labels, dtype=torch.int64)
    return Examples(images, targets, targets, None)
