"""Caltech 101 (Fei-Fei, Fergus and Perona, 2004): 8,677 photographs of 101 kinds of objects. https://data.caltech.edu/records/20086

Licence: uncertain. Some copies state CC BY 4.0 (https://huggingface.co/datasets/HuggingFaceM4/Caltech-101), others that
it is unknown. The page at the address above was not checked.
"""

from dataclasses import dataclass

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets import _files, _photographs, _split
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data
from fedlab_runner.utils.validate import within

IMAGES, BACKGROUND = "101_ObjectCategories", "BACKGROUND_Google"
LAYOUT = (  # the place of the files, for messages
    f"caltech101/{IMAGES}/<category>/image_0001.jpg (as caltech-101.zip unpacks, from "
    "https://data.caltech.edu/records/20086)"
)


@dataclass(frozen=True)
class Caltech101(Dataset):
    """The set in root/caltech101, resized to `image_size` pixels square as it is read, without the background class.

    The test set is round(test_fraction * n) of all photographs, drawn from the seed.
    """

    root: str
    image_size: int
    test_fraction: float
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        _photographs.check(self.image_size, self.mean, self.std)
        within("(0, 1)", test_fraction=self.test_fraction)

    def load(self, seed: int) -> Data:
        folder = _files.folder(self.root, "caltech101", IMAGES)
        if not folder.is_dir():
            raise _files.need(folder, "is missing", LAYOUT)
        names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != BACKGROUND)
        found = [(path, label) for label, name in enumerate(names) for path in sorted((folder / name).glob("*.jpg"))]
        if not found:
            raise _files.need(folder, "has no photographs", LAYOUT)
        order = generator(seed, Purpose.DATA).permutation(len(found))
        size = round(self.test_fraction * len(found))
        _split.check(size, len(found), self.test_fraction)
        parts = [[found[i] for i in sorted(part.tolist())] for part in (order[size:], order[:size])]
        train, test = (
            _photographs.read([path for path, _ in part], [label for _, label in part], self.image_size, LAYOUT)
            for part in parts
        )
        return Data(train, test, tuple(names), tuple(self.mean), tuple(self.std))
