"""FEMNIST (Caldas et al., LEAF, 2018): handwritten characters of 3,550 writers, grey 28x28. https://leaf.cmu.edu

Licence: LEAF's code is BSD, 2 clauses (its LICENSE.md). The characters come from NIST's Special Database 19; the part
of its page (https://www.nist.gov/srd/nist-special-database-19) that was read states none.
"""

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedlab_runner.datasets import _files, _leaf, _statistics
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.utils.validate import within

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase  # in the order of the class indices
NPZ = "femnist-leaf-sf05.npz"  # file with a 5 % sample of LEAF's characters
LAYOUT = (  # the place of the files, for messages
    "femnist/train/*.json and femnist/test/*.json, or femnist/all_data/*.json (LEAF, https://leaf.cmu.edu), or "
    f"femnist/{NPZ}"
)
UNSEEN = 2  # the value of `split` in the npz for a sample of a writer without a training part


@dataclass(frozen=True)
class FEMNIST(Dataset):
    """The set in root/femnist, black (0) on white (255): LEAF's json files if there are any, else the npz.

    Only the first `num_classes` characters count (40: digits, A-Z and a-d, as in Feddle), and then only writers with at
    least `min_samples` samples. `num_users` of them (null: all) are drawn from the seed. The test set is the union of
    their test parts; `unseen_users` adds writers with a test part alone. If the files name no parts (all_data),
    `test_fraction` of each writer's samples are for testing.
    """

    root: str
    num_classes: int
    min_samples: int
    num_users: int | None
    test_fraction: float
    unseen_users: bool
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        within(f"[2, {len(CHARACTERS)}]", num_classes=self.num_classes)
        _leaf.check(self.min_samples, self.num_users, self.test_fraction)
        _statistics.check(self.mean, self.std, channels=1)

    def load(self, seed: int) -> Data:
        samples = _read(_files.folder(self.root, "femnist"))
        samples = samples.where(samples.labels < self.num_classes)
        train, test = (
            Examples(*(torch.from_numpy(each) for each in (part.inputs, part.labels, part.labels, part.users)))
            for part in _leaf.deal(
                samples, self.min_samples, self.num_users, self.test_fraction, self.unseen_users, seed
            )
        )
        return Data(train, test, tuple(CHARACTERS[: self.num_classes]), tuple(self.mean), tuple(self.std))


def _read(folder: Path) -> _leaf.Samples:
    """All samples, with inputs [n, 1, 28, 28] uint8."""
    if (folder / NPZ).is_file() and _leaf.base_of(folder) is None:
        return _read_npz(folder / NPZ)
    return _leaf.read(folder, _decode, len(CHARACTERS), LAYOUT)


def _decode(x: Any) -> np.ndarray:
    """A user's images in LEAF's json: lists of 784 values between 0 (black) and 1 (white)."""
    values = np.asarray(x, np.float64)
    if values.ndim != 2 or values.shape[1] != 784 or not ((values >= 0) & (values <= 1)).all():
        raise ValueError("is not a list of images of 784 values between 0 and 1")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, 1, 28, 28)


def _read_npz(path: Path) -> _leaf.Samples:
    """The arrays images [n, 28, 28] uint8, labels [n], writer [n] and split [n] (0 train, 1 test, 2 test of a writer
    without a training part).
    """
    names = ("images", "labels", "writer", "split")
    try:
        with path.open("rb") as content:
            images, labels, writer, split = _files.arrays(content, names).values()
    except Exception as error:  # hostile bytes can raise anything in a parser
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _files.need(path, f"is damaged ({reason})", LAYOUT) from None
    n = len(images) if images.ndim else 0
    if images.shape != (n, 28, 28) or images.dtype != np.uint8 or not n:
        raise _files.need(path, "holds no array images of n 28x28 uint8 images", LAYOUT)
    for name, array, limit in (
        ("labels", labels, len(CHARACTERS)),
        ("writer", writer, n),
        ("split", split, UNSEEN + 1),
    ):
        if array.shape != (n,) or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= limit:
            raise _files.need(path, f"holds no array {name} of {n} whole numbers below {limit}", LAYOUT)
    order = np.argsort(writer, kind="stable")
    parts = np.where(split == 0, _leaf.TRAIN, _leaf.TEST)
    samples = _leaf.Samples(images[:, None], labels.astype(np.int64), writer.astype(np.int64), parts)
    return samples.where(order)
