"""scikit-learn's digits: 1,797 real handwritten digits of 8x8 pixels, the test part of UCI's optdigits (1998).

`digits.npz` beside this module is scikit-learn's copy.

Licence: that of scikit-learn (BSD, 3 clauses) for the copy. The part of UCI's page that could be read names none for
the original.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedlab_runner.datasets import _split, _statistics
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.utils.validate import within


@dataclass(frozen=True)
class Digits(Dataset):
    """The data set inside this package, which needs no download. Its 17 grey levels are spread to 0..255.

    Each class gives round(test_fraction * its size) examples, drawn from the seed, to the test set.
    """

    test_fraction: float
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        within("(0, 1)", test_fraction=self.test_fraction)
        _statistics.check(self.mean, self.std, channels=1)

    def load(self, seed: int) -> Data:
        with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
            pixels, labels = arrays["pixels"], arrays["labels"]
        images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        in_test = _split.drawn(labels, 10, self.test_fraction, seed)
        train, test = (_examples(images[part], labels[part]) for part in (~in_test, in_test))
        return Data(train, test, tuple(str(digit) for digit in range(10)), tuple(self.mean), tuple(self.std))


def _examples(images: np.ndarray, labels: np.ndarray) -> Examples:
    targets = torch.from_numpy(labels.astype(np.int64))
    return Examples(torch.from_numpy(images), targets, targets, None)
