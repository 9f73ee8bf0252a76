"""Tiny files in the on-disk formats of MNIST and CIFAR, and torchvision's lists of md5s made to expect them."""

import gzip
import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision

PARTS = {"train": 30, "t10k": 20}


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(root: Path, cls: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Writes the four gzipped files of an MNIST-like class, and returns their arrays by file name without .gz."""
    folder = root / cls / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in PARTS.items():
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28))
        arrays[f"{part}-labels-idx1-ubyte"] = np.arange(n) % 10
    for name, array in arrays.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    expect_mnist(root, cls, monkeypatch)
    return arrays


def expect_mnist(root: Path, cls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the md5s of the files as they are now the expected ones."""
    source, folder = getattr(torchvision.datasets, cls), root / cls / "raw"
    monkeypatch.setattr(source, "resources", [(name, md5(folder / name)) for name, _ in source.resources])


class Latin(bytes):
    """A Python 2 str."""


def pickled(value: Any) -> bytes:
    """A pickle of protocol 2 as Python 2 and numpy of 2009 wrote it, which today's pickle cannot write."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, str):
        value = Latin(value.encode())
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value  # BINSTRING
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, Mapping):
        return b"}(" + b"".join(_opcodes(key) + _opcodes(item) for key, item in value.items()) + b"u"
    assert value.dtype == np.uint8
    dtype = b"cnumpy\ndtype\n" + b"(" + _opcodes("u1") + b"K\x00K\x01tR"
    dtype += b"(K\x03" + _opcodes("|") + b"NNN" + _opcodes(-1) + _opcodes(-1) + b"K\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + _opcodes("b") + b"tR"
    shape = b"(" + b"".join(map(_opcodes, value.shape)) + b"t"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + _opcodes(value.tobytes()) + b"tb"


def write_cifar(root: Path, cls: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Writes batches of 20 images and the meta file of CIFAR10 or CIFAR100, and returns what they hold by name."""
    source = getattr(torchvision.datasets, cls)
    folder = root / source.base_folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    files: dict[str, dict[str, Any]] = {}
    for name, _ in source.train_list + source.test_list:
        data = rng.integers(0, 256, (20, 3072)).astype(np.uint8)
        if cls == "CIFAR10":
            labels = {"labels": rng.integers(0, 10, 20).tolist()}
        else:
            fine = rng.integers(0, 100, 20).tolist()
            labels = {"fine_labels": fine, "coarse_labels": [label * 7 % 20 for label in fine]}
        files[name] = {"batch_label": "tiny", **labels, "data": data}
    names = {"label_names": 10} if cls == "CIFAR10" else {"fine_label_names": 100, "coarse_label_names": 20}
    files[source.meta["filename"]] = {key: [f"{key} {i}" for i in range(n)] for key, n in names.items()}
    for name, content in files.items():
        (folder / name).write_bytes(pickled(content))
    expect_cifar(root, cls, monkeypatch)
    return files


def expect_cifar(root: Path, cls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the md5s of the files as they are now the expected ones."""
    source = getattr(torchvision.datasets, cls)
    folder = root / source.base_folder
    for attribute in ("train_list", "test_list"):
        names = [name for name, _ in getattr(source, attribute)]
        monkeypatch.setattr(source, attribute, [[name, md5(folder / name)] for name in names])
    meta = folder / source.meta["filename"]
    monkeypatch.setattr(source, "meta", {**source.meta, "md5": md5(meta)})
