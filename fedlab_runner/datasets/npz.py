"""Your own arrays: images or vectors of features in a numpy file.

Licence: that of the arrays.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedlab_runner.datasets import _files, _statistics
from fedlab_runner.datasets._columns import MAX_CLASSES, shown
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import MAX_SIZE, Data, Examples
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import NotPlainFile, open_to_read
from fedlab_runner.utils.system import memory_bytes

NEEDED, OPTIONAL = ("x_train", "y_train", "x_test", "y_test"), ("users_train", "users_test")
ARRAYS = f"a file that numpy.savez wrote with {', '.join(NEEDED)}"  # the required file, for messages
MAX_WHOLE = 2**24  # up to which float32 holds all whole numbers
CHANNELS = (1, 3)  # possible sizes of the axis of channels, by which this module finds it
# The required inputs, for messages.
IMAGES = "uint8 images, square, [n, height, width] or with an axis of 1 or 3 channels, or numbers [n, features]"


@dataclass(frozen=True)
class NPZ(Dataset):
    """The arrays x_train, y_train, x_test and y_test of the file `path`, and users_train and users_test if it has them.

    Inputs are uint8 images [n, height, width], [n, channels, height, width] or [n, height, width, channels] with 1 or 3
    channels, or vectors of numbers [n, features], which stay unchanged. The classes are the sorted values of y_train
    [n], whole numbers or texts. users_train [n], also numbers or texts, names the natural client of each example. Null
    `mean` and `std` are those of the training images.
    """

    path: str
    mean: list[float] | None
    std: list[float] | None

    def __post_init__(self) -> None:
        channels = len(self.mean or [0.0])
        _statistics.check_if_given(self.mean, self.std, 3 if channels == 3 else 1)

    def load(self, seed: int) -> Data:
        path = Path(self.path).expanduser()
        arrays = _read(path)
        train, test = (_inputs(arrays[name], name, path) for name in ("x_train", "x_test"))
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            shapes = " and ".join(f"{each.dtype} {list(each.shape[1:])}" for each in (train, test))
            raise _refuse(path, f"has inputs of two shapes or types for training and testing, {shapes}")
        labels, test_labels = _values(arrays, {"y_train": len(train), "y_test": len(test)}, path).values()
        classes = np.unique(labels)
        if not 2 <= len(classes) <= MAX_CLASSES:
            raise _refuse(path, f"has {len(classes):,} different values in y_train, not 2 to {MAX_CLASSES:,}")
        if len(unknown := np.setdiff1d(test_labels, classes)):
            raise _refuse(path, f"has the class {shown(str(unknown[0]))} in y_test, which y_train lacks")
        of_train, of_test = _users(arrays, len(train), len(test), path)
        examples = _examples(train, np.searchsorted(classes, labels), of_train)
        tested = _examples(test, np.searchsorted(classes, test_labels), of_test)
        names = tuple(str(name) for name in classes.tolist())
        if examples.inputs.ndim == 2:
            if self.mean is not None:
                raise ValueError(f"mean must be null for vectors of features, which stay unchanged, got {self.mean}")
            return Data(examples, tested, names, None, None)
        return Data(examples, tested, names, *_statistics.given_or_own(self.mean, self.std, examples.inputs))


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that this data set knows, by name."""
    try:
        with open_to_read(path) as content:
            with zipfile.ZipFile(content) as archive:
                there = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
            wanted = [name for name in (*NEEDED, *OPTIONAL) if name in there]
            needed, free = sum(there[name] for name in wanted), memory_bytes()
            if free is not None and needed > free:
                raise _refuse(path, f"needs {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free")
            if absent := [name for name in NEEDED if name not in wanted]:
                raise _refuse(path, f"has no array {', '.join(absent)}")
            content.seek(0)
            return _files.arrays(content, wanted)
    except (FileNotFoundError, NotADirectoryError):
        raise _refuse(path, "is missing") from None
    except NotPlainFile:
        raise _refuse(path, "is no plain file") from None
    except UserError:
        raise
    except Exception as error:  # hostile bytes can raise anything in a parser
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _refuse(path, f"cannot be read ({reason})") from None


def _inputs(x: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Images [n, channels, side, side] uint8 or features [n, d] float32."""
    if x.ndim == 2 and x.size and x.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            features = x.astype(np.float32)
        if len(bad := np.argwhere(~np.isfinite(features))):
            raise _refuse(path, f"has no finite number in row {bad[0, 0]}, column {bad[0, 1]} of {name}")
        if x.dtype.kind in "iu" and len(bad := np.argwhere((x > MAX_WHOLE) | (x < -MAX_WHOLE))):
            where = f"{x[tuple(bad[0])]} in row {bad[0, 0]}, column {bad[0, 1]} of {name}"
            small = "make tokens smaller, or save quantities as floats"
            raise _refuse(path, f"has whole numbers beyond 2^24, which float32 rounds, such as {where}: {small}")
        return features
    given = list(x.shape)
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if (
        x.ndim != 4
        or x.dtype != np.uint8
        or x.shape[1] not in CHANNELS
        or not 1 <= x.shape[2] == x.shape[3] <= MAX_SIZE
    ):
        raise _refuse(path, f"has an array {name} of {x.dtype} {given}, not {IMAGES}")
    if not len(x):
        raise _refuse(path, f"has no examples in {name}")
    return np.ascontiguousarray(x)


def _values(arrays: dict[str, np.ndarray], sizes: dict[str, int], path: Path) -> dict[str, np.ndarray]:
    """Those of these arrays that the file has, [n] or [n, 1]: all whole numbers, or all texts."""
    found = {}
    for name, size in sizes.items():
        if (values := arrays.get(name)) is None:
            continue
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if values.shape != (size,) or values.dtype.kind not in "biuU":
            what = f"{values.dtype} {list(values.shape)}, not {size} whole numbers or texts"
            raise _refuse(path, f"has an array {name} of {what}")
        found[name] = values if values.dtype.kind == "U" else values.astype(np.int64)
    if len({values.dtype.kind for values in found.values()}) > 1:
        raise _refuse(path, f"has numbers in one of {', '.join(found)} and texts in the other")
    return found


def _users(
    arrays: dict[str, np.ndarray], size: int, test_size: int, path: Path
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The users [n] of the training and of the test examples, as indices into the sorted users of both."""
    found = _values(arrays, dict(zip(OPTIONAL, (size, test_size), strict=True)), path)
    known = np.unique(np.concatenate(list(found.values()))) if found else np.empty(0)
    train, test = (np.searchsorted(known, found[name]) if name in found else None for name in OPTIONAL)
    return train, test


def _examples(inputs: np.ndarray, labels: np.ndarray, users: np.ndarray | None) -> Examples:
    targets = torch.from_numpy(labels)
    return Examples(torch.from_numpy(inputs), targets, targets, None if users is None else torch.from_numpy(users))


def _refuse(path: Path, what: str) -> UserError:
    return UserError(f"{path} {what}; set dataset.path to {ARRAYS}")
