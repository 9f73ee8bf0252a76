"""Stanford Cars (Krause et al., 2013): 8,144 + 8,041 photographs of 196 models of cars. https://ai.stanford.edu/~jkrause/cars/car_dataset.html

Licence: unknown. No statement by the authors was found, and a catalogue (https://datasetninja.com/stanford-cars) says
unknown as well. Use it for non-commercial research alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlab_runner.datasets import _files, _matlab, _photographs
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples

TRAIN, TEST, META = "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat", "devkit/cars_meta.mat"
LAYOUT = (  # the place of the files, for messages
    f"stanford_cars/ ({TRAIN}, {TEST}, {META}, cars_train/, cars_test/; as torchvision reads it), from "
    "https://ai.stanford.edu/~jkrause/cars/car_dataset.html"
)


@dataclass(frozen=True)
class StanfordCars(Dataset):
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
        paths, labels = [], []
        for row in _read(annotations, "annotations"):
            if (entry := _entry(row, num_classes)) is None:
                raise _files.need(annotations, f"has an entry that is not a name and a class: {row}", LAYOUT)
            paths.append(images / entry[0])
            labels.append(entry[1] - 1)
        if not paths:
            raise _files.need(annotations, "has no entries", LAYOUT)
        if len(set(paths)) < len(paths):
            raise _files.need(annotations, "has a photograph twice", LAYOUT)
        return _photographs.read(paths, labels, self.image_size, LAYOUT)


def _entry(row: Any, num_classes: int) -> tuple[str, int] | None:
    """The name of a file and the class (from 1) in a row of the annotations; None if one of them is missing."""
    name, label = (row.get("fname"), row.get("class")) if isinstance(row, dict) else (None, None)
    if not isinstance(name, str) or not name or Path(name).name != name:
        return None
    if not isinstance(label, list) or len(label) != 1 or label[0] not in range(1, num_classes + 1):
        return None
    return name, int(label[0])


def _read(path: Path, key: str) -> Any:
    """One variable of a MATLAB file."""
    try:
        return _matlab.variable(path.read_bytes(), key)
    except FileNotFoundError:
        raise _files.need(path, "is missing", LAYOUT) from None
    except (OSError, ValueError) as error:
        raise _files.need(path, f"is not a MATLAB file with {key} ({error})", LAYOUT) from None
