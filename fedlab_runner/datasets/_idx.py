"""MNIST and the data sets in its format: four idx files, gzipped as published, or unpacked.

torchvision gives names, mirrors and md5s. Its own reader reads unpacked files alone, which have no published md5: it
would not notice a changed bit, and it would have to write into a folder with the .gz files alone.
"""

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlab_runner.datasets import _files
from fedlab_runner.datasets.examples import Data, Examples

if TYPE_CHECKING:
    from torchvision.datasets import MNIST


def load(source: "type[MNIST]", root: str, download: bool, mean: list[float], std: list[float]) -> Data:
    """Reads the four files of a torchvision class from root/<class>/raw.

    It prefers the .gz file, which must have its md5. Without a .gz file the unpacked file, as torchvision leaves it,
    must be whole.
    """
    folder = _files.folder(root, source.__name__, "raw")
    layout = f"{source.__name__}/raw/ ({', '.join(name for name, _ in source.resources)})"
    paths = {}
    for name, md5 in source.resources:
        if download and _fault(folder / name, md5):
            _download(source, folder, name, md5)
        if what := _fault(folder / name, md5):
            raise _files.refuse(folder / name, what, layout)
        unpacked = (folder / name).with_suffix("")
        paths[unpacked.name] = folder / name if os.path.exists(folder / name) else unpacked
    train, test = (_examples(paths, part, len(source.classes), layout) for part in ("train", "t10k"))
    return Data(train, test, tuple(source.classes), tuple(mean), tuple(std))


def _fault(path: Path, md5: str) -> str | None:
    if not os.path.exists(path) and os.path.exists(path.with_suffix("")):  # unlike Path.exists, never raises
        return None  # an unpacked file has no published md5; `_read` checks its header
    return _files.fault(path, md5)


def _download(source: "type[MNIST]", folder: Path, name: str, md5: str) -> None:
    from torchvision.datasets.utils import download_url

    def fetch(url: str, temporary: str) -> None:
        download_url(url, temporary, name, md5)

    _files.download(folder, [name], [f"{mirror}{name}" for mirror in source.mirrors], fetch)


def _examples(paths: dict[str, Path], part: str, num_classes: int, layout: str) -> Examples:
    images_path, labels_path = paths[f"{part}-images-idx3-ubyte"], paths[f"{part}-labels-idx1-ubyte"]
    images, labels = _read(images_path, 3, layout), _read(labels_path, 1, layout)
    if len(images) != len(labels):
        raise _files.refuse(labels_path, f"has {len(labels)} labels for {len(images)} images", layout)
    if labels.max(initial=0) >= num_classes:
        raise _files.refuse(labels_path, f"has the label {labels.max()} of {num_classes} classes", layout)
    targets = torch.from_numpy(labels.astype(np.int64))
    return Examples(torch.from_numpy(images).unsqueeze(1), targets, targets, None)


def _read(path: Path, ndim: int, layout: str) -> np.ndarray:
    """The array of a uint8 idx file: magic number 0x08 and ndim, ndim big-endian int32 sizes, then the bytes."""
    delete = "" if path.suffix == ".gz" else ": delete it"  # a download would not replace an unpacked file
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise _files.refuse(path, f"cannot be read ({error})", layout) from None
    start = 4 + 4 * ndim
    if len(content) < start or content[:4] != bytes((0, 0, 8, ndim)):
        raise _files.refuse(path, f"is not an idx file of {ndim} dimensions{delete}", layout)
    shape = [int(size) for size in np.frombuffer(content, ">i4", ndim, 4)]
    if min(shape) < 1 or len(content) - start != math.prod(shape):
        raise _files.refuse(path, f"is damaged ({len(content) - start} bytes for the shape {shape}){delete}", layout)
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
