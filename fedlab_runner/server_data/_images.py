"""Image files as server data: drawn from the seed, and decoded once to the shape of the clients' images."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.image_cache import MODES, decode, decode_cached
from fedlab_runner.utils.errors import UserError

MAX_NAMED = 5  # missing classes that a message names
MAX_SAMPLED = 1000  # images that are decoded once more to find the clients' among them


def lacking(missing: Sequence[str], wanted: Sequence[str]) -> str:
    """The names of missing classes, and how many of the wanted classes are missing."""
    shown = ", ".join([*missing[:MAX_NAMED], *(["..."] if len(missing) > MAX_NAMED else [])])
    return f"{shown} ({len(missing)} of {len(wanted)} missing)"


def read(
    files: Sequence[tuple[Path, int]],
    num_classes: int,
    max_images: int | None,
    where: Path,
    data: Data,
    seed: int,
    cache: str | None,
) -> ServerData:
    """Decodes (path, class) pairs to the shape of the clients' images: at most `max_images` of them, drawn uniformly.

    Each image is resized as a whole, bilinear with antialiasing. The images lie in memory or, with a folder `cache`, in
    a file there. Raises UserError for no image, a single class, a file that is not an image, and clients whose inputs
    are not such images.
    """
    size = shape_of(data)
    chosen = capped(len(files), max_images, seed)
    targets = torch.tensor([files[i][1] for i in chosen], dtype=torch.int64)
    if not len(targets):
        raise UserError(f"server_data: no images in {where}")
    if torch.bincount(targets).count_nonzero() < 2:
        raise UserError(f"server_data: all {len(targets)} images from {where} are of one class; two classes are needed")
    paths = [files[i][0] for i in chosen]
    inputs = decode_cached(paths, size, _refuse, cache, "server_data.cache")
    sampled = [paths[i] for i in capped(len(paths), MAX_SAMPLED, seed)]
    sample = partial(decode, sampled, refuse=_refuse)
    return ServerData(inputs, targets, num_classes, in_domain=False, mapped=cache is not None, sample=sample)


def _refuse(path: Path, what: str) -> UserError:
    return UserError(f"server_data: {path} {what}")


def capped(n: int, most: int | None, seed: int) -> np.ndarray:
    """The ascending indices of at most `most` of n examples, drawn uniformly from `seed`."""
    if most is None or n <= most:
        return np.arange(n)
    return np.sort(generator(seed, Purpose.SERVER_DATA).choice(n, most, replace=False))


def shape_of(data: Data) -> tuple[int, int, int]:
    """Channels, height and width of the clients' images. Raises UserError unless these have 1 or 3 channels."""
    shape = data.train.inputs.shape[1:]
    if len(shape) != 3 or shape[0] not in MODES:
        has = f"{shape[0]} channels" if len(shape) == 3 else "no images but vectors of features"
        raise UserError(f"server_data: out-of-domain images have 1 or 3 channels, but the clients' data has {has}")
    channels, height, width = shape
    return channels, height, width
