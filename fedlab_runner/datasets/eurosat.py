"""EuroSAT (Helber et al., 2019): 27,000 satellite images, 64x64 RGB, of ten kinds of land. https://github.com/phelber/EuroSAT

Licence: MIT, by the file LICENSE of the authors' repository. The pixels come from the Copernicus programme, whose data
are free and open.
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.datasets import _files, _photographs, _split
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data
from fedlab_runner.utils.validate import within

CLASSES = (  # folder names, in the order of the class indices
    *("AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial"),
    *("Pasture", "PermanentCrop", "Residential", "River", "SeaLake"),
)
# The place of the files, for messages.
LAYOUT = "eurosat/2750/<class>/<class>_<number>.jpg, as in EuroSAT.zip from https://github.com/phelber/EuroSAT"


@dataclass(frozen=True)
class EuroSAT(Dataset):
    """The images in root/eurosat/2750 (or a part of them), resized to `image_size` pixels square.

    They were published without a test set: each class gives round(test_fraction * its size) images, drawn from the
    seed, to it.
    """

    root: str
    image_size: int
    test_fraction: float
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        within("(0, 1)", test_fraction=self.test_fraction)
        _photographs.check(self.image_size, self.mean, self.std)

    def load(self, seed: int) -> Data:
        folder = _files.folder(self.root, "eurosat", "2750")
        paths, labels = [], []
        for label, name in enumerate(CLASSES):
            images = sorted((folder / name).glob("*.jpg"))
            if not images:
                raise _files.need(folder / name, "is missing or has no .jpg", LAYOUT)
            paths += images
            labels += [label] * len(images)
        targets = np.array(labels, np.int64)
        in_test = _split.drawn(targets, len(CLASSES), self.test_fraction, seed)
        train, test = (
            _photographs.read([paths[i] for i in part], targets[part].tolist(), self.image_size, LAYOUT)
            for part in map(np.flatnonzero, (~in_test, in_test))
        )
        return Data(train, test, CLASSES, tuple(self.mean), tuple(self.std))
