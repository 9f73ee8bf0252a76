"""Image files as server data: chosen by key, decoded once, in the shape of the clients' images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.image_cache import MODES, decode, decode_mapped
from fedlab_runner.utils.errors import UserError

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
SHOWN = 5  # missing classes in a message


def check_max_images(max_images: int | None) -> None:
    """Raises ValueError for a cap that leaves nothing to learn."""
    if max_images is not None and max_images < 2:
        raise ValueError(f"max_images must be >= 2 or null, got {max_images}")


def lacking(missing: Sequence[str], wanted: Sequence[str]) -> str:
    """Which classes are missing, and how many of those that are wanted."""
    shown = ", ".join([*missing[:SHOWN], *(["..."] if len(missing) > SHOWN else [])])
    return f"{shown} ({len(missing)} of {len(wanted)} missing)"


def images_in(folder: Path) -> list[Path]:
    """The image files in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def read(
    files: Sequence[tuple[Path, int]],
    num_classes: int,
    max_images: int | None,
    where: Path,
    data: Data,
    seed: int,
    cache: str | None,
) -> ServerData:
    """Decodes (path, class) pairs, at most `max_images` of them drawn uniformly, to the shape of the clients' images.

    Images are resized to it as a whole, bilinear with antialiasing; they are held in memory or, with a folder `cache`,
    in a file there. Raises UserError for no image or a single class,
    for a file that is no image and for clients whose examples are no such images.
    """
    size = shape_of(data)
    chosen = capped(len(files), max_images, seed)
    targets = torch.tensor([files[i][1] for i in chosen], dtype=torch.int64)
    if not len(targets):
        raise UserError(f"server_data: no images in {where}")
    if torch.bincount(targets).count_nonzero() < 2:
        raise UserError(f"server_data: all {len(targets)} images from {where} are of one class, two are needed")
    paths = [files[i][0] for i in chosen]
    if cache is None:
        return ServerData(decode(paths, size, _refuse), targets, num_classes, in_domain=False)
    try:
        inputs = decode_mapped(paths, size, _refuse, Path(cache).expanduser())
    except OSError as error:
        room = f"{len(paths) * size[0] * size[1] * size[2] / 1e9:.2g} GB"
        raise UserError(
            f"server_data.cache must be a folder to write {room} into, got {cache} ({error.strerror})"
        ) from error
    return ServerData(inputs, targets, num_classes, in_domain=False, mapped=True)


def _refuse(path: Path, what: str) -> UserError:
    return UserError(f"server_data: {path} {what}")


def capped(n: int, most: int | None, seed: int) -> np.ndarray:
    """Which of n examples are used, in order: at most `most`, uniformly."""
    if most is None or n <= most:
        return np.arange(n)
    return np.sort(generator(seed, Purpose.SERVER_DATA).choice(n, most, replace=False))


def shape_of(data: Data) -> tuple[int, int, int]:
    """Channels, height and width of the clients' images; UserError if there are none of 1 or 3 channels."""
    shape = data.train.inputs.shape[1:]
    if len(shape) != 3 or shape[0] not in MODES:
        has = f"{shape[0]} channels" if len(shape) == 3 else "no images but vectors of features"
        raise UserError(f"server_data: out-of-domain images have 1 or 3 channels, but the clients' data has {has}")
    channels, height, width = shape
    return channels, height, width
