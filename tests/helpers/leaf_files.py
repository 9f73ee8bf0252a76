"""Small files in the formats of LEAF, of the FEMNIST npz and of ISIC 2019."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ISIC_HEADER = ("image", "MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")


def write_leaf(path: Path, users: Mapping[str, tuple[Sequence[Any], Sequence[int]]]) -> None:
    """One json file: user to (x, y)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": list(x), "y": list(y)} for name, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def characters(labels: Sequence[int], mark: int) -> tuple[list[list[float]], list[int]]:
    """A FEMNIST user's x and y: white images with a black row, whose first pixels tell the user and the sample."""
    x = np.full((len(labels), 784), 255)
    x[:, 28:56] = 0
    x[:, 0], x[:, 1] = mark, np.arange(len(labels))
    return (x / 255).tolist(), list(labels)


def write_npz(path: Path, labels: Sequence[int], writer: Sequence[int], split: Sequence[int]) -> np.ndarray:
    """The FEMNIST npz; returns its images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28)).astype(np.uint8)
    arrays = {
        "images": images,
        "labels": np.array(labels, np.uint8),
        "writer": np.array(writer, np.uint16),
        "split": np.array(split, np.uint8),
        "writer_ids": np.array([f"f{i:04}_00" for i in range(max(writer) + 1)]),
    }
    np.savez_compressed(path, **arrays)
    return images


def write_image(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (178, 218)) -> None:
    """A JPEG of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def write_isic(folder: Path, labels: Sequence[int], unknown: bool) -> list[str]:
    """The table, with or without the column UNK, and the photographs: the red of photograph i is 12 i."""
    names = [f"ISIC_{i:07}" + ("_downsampled" if i % 3 == 0 else "") for i in range(len(labels))]
    header = ISIC_HEADER if unknown else ISIC_HEADER[:-1]
    lines = [",".join(header)]
    for i, (name, label) in enumerate(zip(names, labels, strict=True)):
        marks = ["1.0" if c == label else "0.0" for c in range(len(header) - 1)]
        lines.append(",".join([name, *marks]))
        write_image(folder / "ISIC_2019_Training_Input" / f"{name}.jpg", (12 * i, 100, 50), (60 + i, 45))
    (folder / "ISIC_2019_Training_GroundTruth.csv").write_text("\n".join(lines) + "\n")
    return names
