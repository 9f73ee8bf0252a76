"""ModelNet40 (Wu et al., CVPR 2015) as 12 shaded views of each object (Su et al., 2018). https://github.com/jongchyisu/mvcnn_pytorch

Licence: by ModelNet40's authors, "This dataset is provided for the convenience of academic research only", and the
makers of the shapes hold the copyright. The views have no statement of their own.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from fedlab_runner.datasets import _files, _photographs
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.datasets.image_cache import decode
from fedlab_runner.utils.errors import UserError

FOLDER = "modelnet40_images_new_12x"  # name of the unpacked archive
LAYOUT = (  # the place of the files, for messages
    f"{FOLDER}/<class>/{{train,test}}/<object>.obj.shaded_v<view>.png, from https://github.com/jongchyisu/mvcnn_pytorch"
)
# The name of an image file.
VIEW = re.compile(r"(?P<object>.+?)(?:\.obj)?(?:\.shaded)?[._]v?(?P<view>\d+)\.(?:png|jpg)")


@dataclass(frozen=True)
class ModelNet40Views(Dataset):
    """9,843 + 2,468 objects of 40 classes. The three channels of each of the `views` (from 0) are a feature block.

    Views are resized to `image_size` pixels square as they are read, and stacked along the channels.
    """

    root: str
    views: list[int]
    image_size: int
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        if not self.views or len(set(self.views)) != len(self.views) or min(self.views) < 0:
            raise ValueError(f"views must be different numbers >= 0, got {self.views}")
        _photographs.check(self.image_size, self.mean, self.std)

    def load(self, seed: int) -> Data:
        folder = _files.folder(self.root, FOLDER)
        names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        if not names:
            raise _files.need(folder, "is missing or has no folders of classes", LAYOUT)
        train, test = (self._examples(folder, names, part) for part in ("train", "test"))
        count = len(self.views)
        return Data(train, test, tuple(names), tuple(self.mean) * count, tuple(self.std) * count)

    def _examples(self, folder: Path, names: list[str], part: str) -> Examples:
        paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(names):
            objects = _objects(folder / name / part)
            if not objects:
                raise _files.need(folder / name / part, "is missing or has no views", LAYOUT)
            for key in sorted(objects):
                paths += self._chosen(folder / name / part / key, objects[key])
                labels.append(label)
        images = decode(paths, (3, self.image_size, self.image_size), partial(_files.need, layout=LAYOUT))
        targets = torch.tensor(labels)
        return Examples(images.view(len(labels), -1, self.image_size, self.image_size), targets, targets, None)

    def _chosen(self, which: Path, views: dict[int, Path]) -> list[Path]:
        """The files of an object's chosen views. Their names count from 1. Raises UserError if a view is missing."""
        if missing := [view for view in self.views if view + 1 not in views]:
            raise UserError(
                f"{which} has no view {', '.join(map(str, missing))} (counted from 0), of dataset.views {self.views}: "
                "add the file or leave the view out"
            )
        return [views[view + 1] for view in self.views]


def _objects(folder: Path) -> dict[str, dict[int, Path]]:
    """The views of each object in a folder, by their numbers."""
    objects: dict[str, dict[int, Path]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := VIEW.fullmatch(path.name):
            objects.setdefault(match["object"], {})[int(match["view"])] = path
    return objects
