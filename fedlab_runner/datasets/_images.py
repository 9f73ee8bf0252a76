"""Image files, decoded and resized in parallel as they are read, so that only the small images are held."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.datasets import _files


def load(paths: Sequence[Path], image_size: int, layout: str) -> Tensor:
    """The images as RGB [n, 3, image_size, image_size] uint8: bilinear with antialiasing, the aspect ratio not kept.

    Raises UserError for the first file, in their order, that is missing or damaged; `layout` as for `_files.need`.
    """
    images = np.empty((len(paths), 3, image_size, image_size), np.uint8)

    def read(index: int) -> None:
        images[index] = _read(paths[index], image_size, layout).transpose(2, 0, 1)

    pool = ThreadPoolExecutor(os.cpu_count())  # Pillow decodes and resizes without the interpreter's lock
    try:
        for _ in pool.map(read, range(len(paths))):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    return torch.from_numpy(images)


def _read(path: Path, image_size: int, layout: str) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.draft("RGB", (2 * image_size, 2 * image_size))  # a JPEG is decoded no larger than it needs to be
            rgb = image.convert("RGB")
        return np.asarray(rgb.resize((image_size, image_size), Image.Resampling.BILINEAR))
    except FileNotFoundError:
        raise _files.need(path, "is missing", layout) from None
    except Exception as error:  # hostile or cut off, it can raise anything in a decoder
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _files.need(path, f"is not an image that can be read ({reason})", layout) from None
