"""Reads photographs, for the data sets that consist of them."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from fedlab_runner.datasets import _files, _statistics
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.datasets.image_cache import decode
from fedlab_runner.utils.validate import at_least


def check(image_size: int, mean: list[float], std: list[float]) -> None:
    """Raises ValueError, named after the field, for a size < 1 or statistics that do not fit colour images."""
    at_least(1, image_size=image_size)
    _statistics.check(mean, std, channels=3)


def read(paths: Sequence[Path], labels: Sequence[int], image_size: int, layout: str) -> Examples:
    """Colour photographs [n, 3, image_size, image_size] uint8, resized as they are read, with their labels."""
    images = decode(paths, (3, image_size, image_size), partial(_files.need, layout=layout))
    targets = torch.tensor(labels, dtype=torch.int64)
    return Examples(images, targets, targets, None)
