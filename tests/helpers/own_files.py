"""Small files of one's own, as people have them: folders of images, tables, arrays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROWS = [
    *("ann,20,cook,1.5,b", "ben,40,nurse,2.5,a", "ann,30,cook,3.5,a", "cem,50,cook,0.5,b"),
    *("ben,60,smith,1.0,a", "cem,10,nurse,2.0,b", "ann,35,cook,3.0,a", "ben,45,nurse,4.0,b"),
]
HEADER = "who,age,job,size,kind"


def write_table(path: Path, *rows: str, header: str = HEADER) -> str:
    """A file of comma-separated values; returns its name."""
    path.write_text("\n".join([header, *(rows or ROWS)]) + "\n")
    return str(path)


def write_images(root: Path, classes: Sequence[str], counts: Sequence[int], suffix: str = ".png") -> np.ndarray:
    """Colour images of 5 x 7 pixels in root/<class>/; returns them [n, 5, 7, 3] in order of class and name."""
    rng, images = np.random.default_rng(len(classes)), []
    for name, count in zip(classes, counts, strict=True):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            images.append(rng.integers(0, 256, (5, 7, 3), np.uint8))
            Image.fromarray(images[-1]).save(root / name / f"{i:03}{suffix}")
    return np.array(images)


def write_arrays(path: Path, **changes: Any) -> dict[str, np.ndarray]:
    """A file of arrays: 9 + 6 grey images of 4 x 4 pixels of three classes; None leaves an array out."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (9, 4, 4), np.uint8),
        "y_train": np.arange(9) % 3,
        "x_test": rng.integers(0, 256, (6, 4, 4), np.uint8),
        "y_test": np.arange(6) % 3,
        **changes,
    }
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
    return arrays
