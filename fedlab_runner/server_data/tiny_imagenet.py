"""Tiny-ImageNet as out-of-domain data: 200 of ImageNet's classes in 64x64 pixels, some images grey."""

from dataclasses import dataclass
from pathlib import Path

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.image_cache import images_in
from fedlab_runner.server_data import _images
from fedlab_runner.server_data.base import ServerDataSource
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of

FOLDER = "tiny-imagenet-200"  # name of the unpacked archive


@dataclass(frozen=True)
class TinyImageNet(ServerDataSource):
    """The images of one `split` in root/tiny-imagenet-200, of all classes or of `classes` (wnids).

    At most `max_images` are drawn uniformly. They are decoded once, into memory or into a file in the folder `cache`.

    Training images are in train/<wnid>/images; validation images in val/images, with their wnids in
    val/val_annotations.txt. Classes are numbered in the order of wnids.txt.
    """

    root: str
    split: str
    classes: list[str] | None
    max_images: int | None
    cache: str | None

    def __post_init__(self) -> None:
        one_of(("train", "val"), split=self.split)
        at_least(2, max_images=self.max_images)
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(f"classes must be null or two or more different wnids, got {self.classes}")

    def reserve(self, data: Data, seed: int) -> tuple[ServerData, Data]:
        root = Path(self.root).expanduser() / FOLDER
        known = self._read(root / "wnids.txt").split()
        names = self.classes or known
        if missing := [name for name in names if name not in known]:
            lacks = _images.lacking(missing, names)
            raise UserError(f"server_data.classes must be wnids of {root / 'wnids.txt'}, which has no {lacks}")
        labels = {name: label for label, name in enumerate(names)}
        files = [(path, labels[wnid]) for path, wnid in self._images(root) if wnid in labels]
        return _images.read(files, len(labels), self.max_images, root / self.split, data, seed, self.cache), data

    def _images(self, root: Path) -> list[tuple[Path, str]]:
        if self.split == "train":
            folders = sorted(root.glob("train/*/images"))
            return [(path, folder.parent.name) for folder in folders for path in images_in(folder)]
        table = self._read(root / "val" / "val_annotations.txt").splitlines()
        rows = sorted(tuple(line.split("\t")[:2]) for line in table if line.strip())
        if bad := [row for row in rows if len(row) < 2]:
            raise UserError(f"server_data: {root}/val/val_annotations.txt has the line {bad[0][0]!r} without a wnid")
        return [(root / "val" / "images" / name, wnid) for name, wnid in rows]

    def _read(self, path: Path) -> str:
        try:
            return path.read_text()
        except (OSError, ValueError) as error:
            where = "server_data.root (environment FEDLAB_DATA)"
            raise UserError(f"{path} cannot be read; set {where} to a folder with {FOLDER}/ in it") from error
