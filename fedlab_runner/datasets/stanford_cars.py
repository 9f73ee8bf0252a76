"""Stanford Cars (Krause et al., 2013): 8,144 + 8,041 photographs of 196 models of cars. https://ai.stanford.edu/~jkrause/cars/car_dataset.html

Licence: unknown: no statement of the authors was found, and a catalogue (https://datasetninja.com/stanford-cars) says
unknown as well. Take it as meant for non-commercial research.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlab_runner.data import Data, Examples
from fedlab_runner.datasets import _files, _matlab, _photographs

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
        names = _read(folder / META, "class_names")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
            raise _files.need(folder / META, "has class_names that are no list of names", LAYOUT)
        train, test = (
            self._examples(folder / annotations, folder / images, len(names))
            for annotations, images in ((TRAIN, "cars_train"), (TEST, "cars_test"))
        )
        return Data(train, test, tuple(names), tuple(self.mean), tuple(self.std))

    def _examples(self, annotations: Path, images: Path, num_classes: int) -> Examples:
        table = _read(annotations, "annotations")
        entries = [(row.get("fname"), row.get("class")) for row in table if isinstance(row, dict)]
        if not entries:
            raise _files.need(annotations, "has no entries with fname and class", LAYOUT)
        paths, labels = [], []
        for name, label in entries:
            if not _is_entry(name, label, num_classes):
                raise _files.need(annotations, f"has an entry that is not a name and a class: {name}, {label}", LAYOUT)
            paths.append(images / name)
            labels.append(int(label[0]) - 1)
        if len(set(paths)) < len(paths):
            raise _files.need(annotations, "has a photograph twice", LAYOUT)
        return _photographs.read(paths, labels, self.image_size, LAYOUT)


def _is_entry(name: Any, label: Any, num_classes: int) -> bool:
    """Whether these are the name of a file and a class from 1."""
    named = isinstance(name, str) and bool(name) and Path(name).name == name
    return named and isinstance(label, list) and len(label) == 1 and label[0] in range(1, num_classes + 1)


def _read(path: Path, key: str) -> Any:
    """One variable of a MATLAB file."""
    try:
        return _matlab.variable(path.read_bytes(), key)
    except FileNotFoundError:
        raise _files.need(path, "is missing", LAYOUT) from None
    except (OSError, ValueError) as error:
        raise _files.need(path, f"is not a MATLAB file with {key} ({error})", LAYOUT) from None
