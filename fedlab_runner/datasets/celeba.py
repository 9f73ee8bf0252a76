"""CelebA (Liu et al., ICCV 2015) as in LEAF: photographs by identity, smiling or not. https://leaf.cmu.edu

Licence: the agreement allows non-commercial research alone, and forbids copying, publishing or distributing the images
(read in copies of the agreement, not on the authors' page).
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedlab_runner.datasets import _files, _leaf, _photographs
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.datasets.image_cache import decode

# Folders that may hold the photographs; the first that exists counts.
IMAGES = ("data/raw/img_align_celeba", "raw/img_align_celeba", "img_align_celeba")
LAYOUT = (  # the place of the files, for messages
    "celeba/train/*.json and celeba/test/*.json, or celeba/all_data/*.json (LEAF, https://leaf.cmu.edu), and the "
    "photographs in celeba/img_align_celeba/ or celeba/raw/img_align_celeba/"
)


@dataclass(frozen=True)
class CelebA(Dataset):
    """The set in root/celeba. LEAF's json files name the photographs and label each as smiling or not.

    `num_users` identities (null: all) are drawn from the seed among those with at least `min_samples` photographs. Only
    their photographs are read, resized to `image_size` pixels square. The test set is the union of their test parts. If
    the files name no parts (all_data), `test_fraction` of each identity's photographs are for testing.
    """

    root: str
    image_size: int
    min_samples: int
    num_users: int | None
    test_fraction: float
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        _leaf.check(self.min_samples, self.num_users, self.test_fraction)
        _photographs.check(self.image_size, self.mean, self.std)

    def load(self, seed: int) -> Data:
        base = _files.folder(self.root, "celeba")
        samples = _leaf.read(base, _decode, 2, LAYOUT)
        parts = _leaf.deal(samples, self.min_samples, self.num_users, self.test_fraction, False, seed)
        folder = next((base / name for name in IMAGES if (base / name).is_dir()), None)
        if folder is None:
            raise _files.need(base / IMAGES[-1], "is missing", LAYOUT)
        train, test = (self._examples(part, folder) for part in parts)
        return Data(train, test, ("not smiling", "smiling"), tuple(self.mean), tuple(self.std))

    def _examples(self, part: _leaf.Samples, folder: Path) -> Examples:
        size = (3, self.image_size, self.image_size)
        images = decode([folder / name for name in part.inputs.tolist()], size, partial(_files.need, layout=LAYOUT))
        labels, users = torch.from_numpy(part.labels), torch.from_numpy(part.users)
        return Examples(images, labels, labels, users)


def _decode(x: Any) -> np.ndarray:
    """A user's list of file names."""
    if not all(isinstance(name, str) and name and Path(name).name == name for name in x):
        raise ValueError("is not a list of file names")
    return np.array(x)
