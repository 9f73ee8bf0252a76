"""Stanford Cars (Krause et al., 2013): 8,144 + 8,041 photographs of 196 models of cars. https://ai.stanford.edu/~jkrause/cars/car_dataset.html

Licence: unknown: no statement of the authors was found, and a catalogue (https://datasetninja.com/stanford-cars) says
unknown as well. Take it as meant for non-commercial research.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlab_runner.data import Data, Examples
from fedlab_runner.datasets import _files, _photographs

TRAIN, TEST, META = "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat", "devkit/cars_meta.mat"
LAYOUT = f"stanford_cars/ ({TRAIN}, {TEST}, {META}, cars_train/, cars_test/; as torchvision reads it)"


@dataclass(frozen=True)
class StanfordCars:
    """The set in root/stanford_cars with its own division, resized to `image_size` pixels square as it is read."""

    root: str
    image_size: int
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        _photographs.check(self.image_size, self.mean, self.std)

    def load(self, seed: int) -> Data:
        folder = _files.folder(self.root, "stanford_cars")
        names = [str(name) for name in np.atleast_1d(_read(folder / META, "class_names")).tolist()]
        train, test = (
            self._examples(folder / annotations, folder / images, len(names))
            for annotations, images in ((TRAIN, "cars_train"), (TEST, "cars_test"))
        )
        return Data(train, test, tuple(names), tuple(self.mean), tuple(self.std))

    def _examples(self, annotations: Path, images: Path, num_classes: int) -> Examples:
        table = np.atleast_1d(_read(annotations, "annotations"))
        if not {"fname", "class"} <= set(table.dtype.names or ()):
            raise _files.need(annotations, "has no columns fname and class", LAYOUT)
        paths, labels = [], []
        for row in table:
            name, label = str(row["fname"]), int(row["class"])
            if Path(name).name != name or not 1 <= label <= num_classes:
                raise _files.need(annotations, f"has an entry that is not a name and a class: {name}, {label}", LAYOUT)
            paths.append(images / name)
            labels.append(label - 1)
        return _photographs.read(paths, labels, self.image_size, LAYOUT)


def _read(path: Path, key: str) -> Any:
    """One variable of a MATLAB file."""
    from scipy.io import matlab

    loadmat: Any = matlab.loadmat  # scipy has no types
    if not path.is_file():
        raise _files.need(path, "is missing", LAYOUT)
    try:
        return loadmat(path, squeeze_me=True)[key]
    except Exception as error:  # hostile bytes can raise anything in a parser; whatever it is, the file is bad
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _files.need(path, f"is not a MATLAB file with {key} ({reason})", LAYOUT) from None
