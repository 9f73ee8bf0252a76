"""Image files, decoded and resized in parallel as they are read, so that only the small images are held."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.errors import UserError

MODES = {1: "L", 3: "RGB"}  # by channels


def decode(paths: Sequence[Path], size: tuple[int, int, int], refuse: Callable[[Path, str], UserError]) -> Tensor:
    """The images as uint8 [n, channels, height, width], `size` being (channels, height, width) of 1 or 3 channels.

    Each is resized as a whole, bilinear with antialiasing, the aspect ratio not kept. Raises `refuse(path, what)` for
    the first file, in their order, that is missing or damaged.
    """
    images = np.empty((len(paths), *size), np.uint8)

    def read(index: int) -> None:
        images[index] = _decode(paths[index], size, refuse)

    pool = ThreadPoolExecutor(os.cpu_count())  # Pillow decodes and resizes without the interpreter's lock
    try:
        for _ in pool.map(read, range(len(paths))):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    return torch.from_numpy(images)


def _decode(path: Path, size: tuple[int, int, int], refuse: Callable[[Path, str], UserError]) -> np.ndarray:
    from PIL import Image

    channels, height, width = size
    try:
        with Image.open(path) as file:
            file.draft(MODES[channels], (2 * width, 2 * height))  # a JPEG is decoded no larger than it needs to be
            image = file.convert(MODES[channels])
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    except FileNotFoundError:
        raise refuse(path, "is missing") from None
    except Exception as error:  # hostile or cut off, it can raise anything in a decoder
        reason = " ".join(str(error).split()) or type(error).__name__
        raise refuse(path, f"is not an image that can be read ({reason})") from None
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
