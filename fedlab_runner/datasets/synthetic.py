"""A learnable classification problem of any size: a random prototype for each class, plus noise.

Licence: none, as nothing is stored.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.utils.validate import at_least, within

GRID_CELLS = 4  # along each side of a prototype, so coarse that prototypes survive resizing and pooling
CHUNK_VALUES = 2**20  # values made at a time, so that intermediate arrays fit into the CPU's cache


@dataclass(frozen=True)
class Synthetic(Dataset):
    """Images (uint8, with uniform noise of standard deviation 255 * `noise`, rounded down and clipped) or, if
    `features` is set, vectors of `features` floats (standard normal prototypes, with Gaussian noise of standard
    deviation `noise`).

    Classes are equally frequent. With `num_users` each example has a uniformly drawn natural client.
    """

    num_classes: int
    num_train: int
    num_test: int
    channels: int
    image_size: int
    features: int | None
    noise: float
    num_users: int | None

    def __post_init__(self) -> None:
        at_least(
            1,
            num_classes=self.num_classes,
            num_train=self.num_train,
            num_test=self.num_test,
            channels=self.channels,
            image_size=self.image_size,
            features=self.features,
            num_users=self.num_users,
        )
        within("[0, 0.5]", noise=self.noise)

    def load(self, seed: int) -> Data:
        rng = generator(seed, Purpose.DATA)
        images = self.features is None
        prototypes = self._images(rng) if images else rng.standard_normal((self.num_classes, self.features or 0))
        train, test = (self._examples(rng, prototypes, n) for n in (self.num_train, self.num_test))
        names = tuple(f"class {index}" for index in range(self.num_classes))
        if not images:
            return Data(train, test, names, None, None)
        sample = train.inputs[:10_000].double() / 255
        mean, std = sample.mean((0, 2, 3)), sample.std((0, 2, 3), correction=0).clamp(min=1 / 255)
        return Data(train, test, names, tuple(mean.tolist()), tuple(std.tolist()))

    def _images(self, rng: np.random.Generator) -> np.ndarray:
        cells = rng.integers(0, 256, (self.num_classes, self.channels, GRID_CELLS, GRID_CELLS))
        pick = np.arange(self.image_size) * GRID_CELLS // self.image_size
        return cells[:, :, pick][:, :, :, pick]

    def _examples(self, rng: np.random.Generator, prototypes: np.ndarray, n: int) -> Examples:
        labels = rng.permutation(np.arange(n) % self.num_classes)
        chunk = max(1, CHUNK_VALUES // prototypes[0].size)
        if self.features is None:
            inputs = np.empty((n, *prototypes.shape[1:]), np.uint8)
            prototypes = prototypes.astype(np.int16)
            amplitude = np.int16(round(math.sqrt(3) * 255 * self.noise))  # half the width of the uniform noise
            for start in range(0, n, chunk):
                part = inputs[start : start + chunk]
                noise = np.frombuffer(rng.bytes(part.size), np.int8).astype(np.int16).reshape(part.shape)
                noise *= amplitude  # at most 128 * 221, which int16 holds
                noise >>= 7
                noise += prototypes[labels[start : start + chunk]]
                part[...] = noise.clip(0, 255, out=noise)
        else:
            inputs = np.empty((n, self.features), np.float32)
            prototypes = prototypes.astype(np.float32)
            for start in range(0, n, chunk):
                part = inputs[start : start + chunk]
                rng.standard_normal(part.shape, np.float32, part)
                part *= np.float32(self.noise)
                part += prototypes[labels[start : start + chunk]]
        targets = torch.from_numpy(labels)
        users = None if self.num_users is None else torch.from_numpy(rng.integers(self.num_users, size=n))
        return Examples(torch.from_numpy(inputs), targets, targets, users)
