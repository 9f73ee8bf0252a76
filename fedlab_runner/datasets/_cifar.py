"""CIFAR-10 and CIFAR-100 in the "python version": pickled batches, read without trusting them."""

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch

from fedlab_runner.datasets import _archives as archives
from fedlab_runner.datasets import _files
from fedlab_runner.datasets.examples import Data, Examples

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10


def load(
    source: "type[CIFAR10]", root: str, download: bool, mean: list[float], std: list[float], target: str, stratum: str
) -> Data:
    """Reads the files of a torchvision class from root/<its folder>: its file names, address and md5s are used.

    `target` and `stratum` say what is learnt and what partitions call a class: "", "fine_" or "coarse_", the prefix
    of "labels" in the batches and of "label_names" in the meta file. Every stratum must lie in one target.
    """
    folder = _files.folder(root, source.base_folder)
    layout = f"{source.base_folder}/ (as {source.filename} unpacks)"
    train_files, test_files = dict(source.train_list), dict(source.test_list)
    meta = source.meta["filename"]
    files = {**train_files, **test_files, meta: source.meta["md5"]}
    if download and any(_files.fault(folder / name, md5) for name, md5 in files.items()):
        _download(source, folder, list(files))
    for name, md5 in files.items():
        if what := _files.fault(folder / name, md5):
            raise _files.refuse(folder / name, what, layout)
    names: dict[str, list[str]] = {}
    for key in (f"{target}label_names", f"{stratum}label_names"):
        value = _read(folder / meta, layout).get(key)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise _files.refuse(folder / meta, f"has no list {key}", layout)
        names[key] = value
    sizes = {f"{prefix}labels": len(names[f"{prefix}label_names"]) for prefix in (target, stratum)}
    train, test = (
        _examples([folder / name for name in part], sizes, f"{target}labels", f"{stratum}labels", layout)
        for part in (train_files, test_files)
    )
    pairs = {pair for part in (train, test) for pair in zip(part.strata.tolist(), part.targets.tolist(), strict=True)}
    if len(pairs) > len({fine for fine, _ in pairs}):
        raise _files.refuse(folder, f"has {stratum}labels that lie in more than one of its {target}labels", layout)
    return Data(train, test, tuple(names[f"{target}label_names"]), tuple(mean), tuple(std))


def _download(source: "type[CIFAR10]", folder: Path, names: list[str]) -> None:
    from torchvision.datasets.utils import download_url

    def fetch(url: str, temporary: str) -> None:
        download_url(url, temporary, source.filename, source.tgz_md5)
        archives.take(Path(temporary, source.filename), [f"{source.base_folder}/{n}" for n in names], Path(temporary))

    _files.download(folder, names, [source.url], fetch)


def _examples(paths: list[Path], sizes: dict[str, int], target: str, stratum: str, layout: str) -> Examples:
    images, labels = [], {key: [np.empty(0, np.int64)] for key in sizes}
    for path in paths:
        batch = _read(path, layout)
        data = batch.get("data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise _files.refuse(path, "holds no array of 32x32 images", layout)
        images.append(data.reshape(-1, 3, 32, 32))
        for key, size in sizes.items():
            values = batch.get(key)
            if not isinstance(values, list) or len(values) != len(data):
                raise _files.refuse(path, f"has no {key} for its {len(data)} images", layout)
            if not all(isinstance(value, int) and 0 <= value < size for value in values):
                raise _files.refuse(path, f"has {key} outside 0..{size - 1}", layout)
            labels[key].append(np.array(values, np.int64))
    tensors = {key: torch.from_numpy(np.concatenate(values)) for key, values in labels.items()}
    return Examples(torch.from_numpy(np.concatenate(images)), tensors[target], tensors[stratum], None)


class _Unpickler(pickle.Unpickler):
    """Knows the three names that a CIFAR file needs, so that a file can build arrays but run nothing."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case (("numpy.core.multiarray" | "numpy._core.multiarray"), "_reconstruct"):
                return _empty_array  # numpy's own of this name was moved and will go
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return np.dtype
        raise pickle.UnpicklingError(f"asks for {module}.{name}, which no such file needs")


def _empty_array(subtype: type[np.ndarray], shape: tuple[int, ...], dtype: str | bytes) -> np.ndarray:
    """What an array is before its state is set: numpy writes it as (ndarray, (0,), "b")."""
    if subtype is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError("builds an array in a way that no such file needs")
    return np.ndarray((0,), np.int8)


def _read(path: Path, layout: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = _unpickle(file)
    except Exception as error:  # hostile bytes can raise anything in an unpickler; whatever it is, the file is bad
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _files.refuse(path, f"is not a CIFAR file: it {reason}", layout) from None
    if not isinstance(content, dict):
        raise _files.refuse(path, "is not a CIFAR file: it holds no dictionary", layout)
    return content


def _unpickle(file: BinaryIO) -> Any:
    return _Unpickler(file, encoding="latin1").load()
