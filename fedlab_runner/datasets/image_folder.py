"""Your own images: a folder for each class.

Licence: that of the images.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from fedlab_runner.datasets import _split, _statistics
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import MAX_SIZE, Data, Examples
from fedlab_runner.datasets.image_cache import MODES, SUFFIXES, decode_cached, folders_in, images_in
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import one_of, within

PARTS = ("train", "test")  # folders of the training and the test images
# The place of the images, for messages.
LAYOUT = f"train/<class>/ and test/<class>/, or <class>/, that hold images ({', '.join(SUFFIXES)})"


@dataclass(frozen=True)
class ImageFolder(Dataset):
    """The images in root/train/<class>/ and root/test/<class>/, each resized as a whole to `image_size` pixels square.

    Without these two folders the images are in root/<class>/, and each class gives round(test_fraction * its size)
    images, drawn from the seed, to the test set. The classes are the folders for training, by name. Images are decoded
    once, into a file in the folder `cache` (null: at each start, into memory). Null `mean` and `std` are those of the
    training images. `name` distinguishes runs on different images; `root` may move.
    """

    root: str
    name: str
    image_size: int
    channels: int
    test_fraction: float
    cache: str | None
    mean: list[float] | None
    std: list[float] | None

    def __post_init__(self) -> None:
        within(f"[1, {MAX_SIZE}]", image_size=self.image_size)
        one_of(MODES, channels=self.channels)
        within("(0, 1)", test_fraction=self.test_fraction)
        _statistics.check_if_given(self.mean, self.std, self.channels)

    def load(self, seed: int) -> Data:
        root = Path(self.root).expanduser()
        training, testing = (root / part for part in PARTS)
        if training.is_dir() and testing.is_dir():
            classes = _classes(training)
            if unknown := [name for name in _classes(testing, least=1) if name not in classes]:
                raise _refuse(testing / unknown[0], f"is a class that {training} lacks")
            train, test = (self._examples(*_files_of(each, classes)) for each in (training, testing))
        elif training.is_dir() and folders_in(training):
            raise _refuse(root, f"has {PARTS[0]}/ and no {PARTS[1]}/")
        else:
            classes = _classes(root)
            whole = self._examples(*_files_of(root, classes))
            in_test = _split.drawn(whole.targets.numpy(), len(classes), self.test_fraction, seed)
            train, test = (whole.select(torch.from_numpy(part)) for part in (~in_test, in_test))
        if lacking := sorted({*range(len(classes))} - {*train.targets.tolist()}):
            raise _refuse(root, f"has no training image of the class {classes[lacking[0]]}")
        if not len(test.targets):
            raise _refuse(testing, "has no image")
        mean, std = _statistics.given_or_own(self.mean, self.std, train.inputs)
        return Data(train, test, tuple(classes), mean, std)

    def _examples(self, paths: list[Path], labels: list[int]) -> Examples:
        size, targets = (self.channels, self.image_size, self.image_size), torch.tensor(labels, dtype=torch.int64)
        return Examples(decode_cached(paths, size, _refuse, self.cache, "dataset.cache"), targets, targets, None)


def _classes(folder: Path, least: int = 2) -> list[str]:
    """The names of the folders in a folder, without hidden ones."""
    try:
        names = folders_in(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise _refuse(folder, "is no folder") from None
    except OSError as error:
        raise _refuse(folder, f"cannot be read ({error.strerror})") from None
    if len(names) < least:
        raise _refuse(folder, f"holds {len(names)} folders of classes, and {least} are needed")
    return names


def _files_of(folder: Path, classes: list[str]) -> tuple[list[Path], list[int]]:
    """The image files of each class and their classes."""
    found = [
        (path, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()
        for path in images_in(folder / name)
    ]
    return [path for path, _ in found], [label for _, label in found]


def _refuse(path: Path, what: str) -> UserError:
    return UserError(f"{path} {what}; set dataset.root to a folder with {LAYOUT}")
