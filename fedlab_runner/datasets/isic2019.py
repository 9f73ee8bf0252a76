"""ISIC 2019: 25,331 dermoscopic photographs of eight kinds of skin lesions. https://challenge.isic-archive.com/data/#2019

Licence: CC BY-NC 4.0, by copies of the set (https://huggingface.co/datasets/flwrlabs/fed-isic2019); the challenge's
page was not checked. The archives from which the images come ask to be named.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedlab_runner.datasets import _files, _photographs, _split, _tables
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data
from fedlab_runner.utils.validate import within

# Columns of the table, in the order of the class indices.
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
UNKNOWN = "UNK"  # column of a class that does not count
TABLE, IMAGES = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Input"
LAYOUT = (  # the place of the files, for messages
    f"isic2019/{TABLE} and the photographs in isic2019/{IMAGES}/, from https://challenge.isic-archive.com/data/#2019"
)


@dataclass(frozen=True)
class ISIC2019(Dataset):
    """The training set in root/isic2019, resized to `image_size` pixels square as it is read.

    The challenge's test labels are not public, so each class gives round(test_fraction * its size) examples, drawn from
    the seed, to the test set. Photographs of the class UNK do not count.
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
        folder = _files.folder(self.root, "isic2019")
        names, labels = _read_table(folder / TABLE)
        in_test = _split.drawn(labels, len(CLASSES), self.test_fraction, seed)
        paths = [folder / IMAGES / f"{name}.jpg" for name in names]
        train, test = (
            _photographs.read([paths[i] for i in part], labels[part].tolist(), self.image_size, LAYOUT)
            for part in map(np.flatnonzero, (~in_test, in_test))
        )
        return Data(train, test, CLASSES, tuple(self.mean), tuple(self.std))


def _read_table(path: Path) -> tuple[list[str], np.ndarray]:
    """The names of the images and their classes [n], from a column `image` and a column of 0.0 and 1.0 for each
    class.
    """
    rows = _tables.rows(path, partial(_files.need, layout=LAYOUT))
    columns = [name.strip() for name in next(rows, (0, []))[1]]
    if columns not in (["image", *CLASSES], ["image", *CLASSES, UNKNOWN]):
        raise _files.need(path, f"lacks the columns image,{','.join(CLASSES)}[,{UNKNOWN}]", LAYOUT)
    names, labels = [], []
    for number, row in rows:
        try:
            marks = [float(mark) for mark in row[1:]]
        except ValueError:
            marks = []
        if len(row) != len(columns) or sorted(marks) != [0.0] * (len(marks) - 1) + [1.0] or Path(row[0]).name != row[0]:
            raise _files.need(path, f"has a line {number} that is not a name and exactly one 1.0", LAYOUT)
        if (label := marks.index(1.0)) < len(CLASSES):
            names.append(row[0])
            labels.append(label)
    if not names:
        raise _files.need(path, "lists no images", LAYOUT)
    if len(set(names)) < len(names):
        raise _files.need(path, "lists a photograph twice", LAYOUT)
    return names, np.array(labels, np.int64)
