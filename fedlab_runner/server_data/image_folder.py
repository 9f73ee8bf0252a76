"""Out-of-domain images in ImageNet's layout: a folder for each class."""

from dataclasses import dataclass
from pathlib import Path

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.image_cache import folders_in, images_in
from fedlab_runner.server_data import _images
from fedlab_runner.server_data.base import ServerDataSource
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class ServerImageFolder(ServerDataSource):
    """The images in root/<class>/, of all classes or of `classes`, which are folder names such as ImageNet's wnids.

    Hidden folders are no classes. At most `max_images` are drawn uniformly. They are decoded once, into memory or into
    a file in the folder `cache`. `name` distinguishes runs on different images; `root` may move.
    """

    root: str
    name: str
    classes: list[str] | None
    max_images: int | None
    cache: str | None

    def __post_init__(self) -> None:
        at_least(2, max_images=self.max_images)
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(f"classes must be null or two or more different names, got {self.classes}")

    def reserve(self, data: Data, seed: int) -> tuple[ServerData, Data]:
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise UserError(
                f"server_data.root must be a folder of one folder a class, got {root}, which does not exist"
            )
        names = self.classes or folders_in(root)
        if missing := [name for name in names if not (root / name).is_dir()]:
            raise UserError(
                f"server_data.classes must be folders in {root}, which has no {_images.lacking(missing, names)}"
            )
        files = [(path, label) for label, name in enumerate(names) for path in images_in(root / name)]
        return _images.read(files, len(names), self.max_images, root, data, seed, self.cache), data
