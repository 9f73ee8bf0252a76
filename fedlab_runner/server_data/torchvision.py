"""Another data set as out-of-domain data."""

from dataclasses import dataclass

import torch

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data
from fedlab_runner.server_data import _images
from fedlab_runner.server_data.base import ServerDataSource
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of


@dataclass(frozen=True)
class OtherDataset(ServerDataSource):
    """One `part` (train, test) of a data set of the group `dataset`: at most `max_images` of it, drawn uniformly."""

    dataset: Dataset
    part: str
    max_images: int | None

    def __post_init__(self) -> None:
        one_of(("train", "test"), part=self.part)
        at_least(2, max_images=self.max_images)

    def reserve(self, data: Data, seed: int) -> tuple[ServerData, Data]:
        channels, height, width = _images.shape_of(data)
        if height != width:
            raise UserError(f"server_data: other data sets give square images, but the clients' are {height}x{width}")
        try:
            loaded: Data = self.dataset.load(seed)
        except UserError as error:
            raise UserError(f"server_data: {error}") from error
        except ValueError as error:
            raise ValueError(f"dataset.{error}") from error
        try:
            other = loaded.fit(channels, height)
        except ValueError as error:
            raise ValueError(
                f"dataset must have images that can take the clients' form, {channels} x {height} x {width}, but "
                f"{error}; choose another, such as dataset@server_data.dataset=cifar100"
            ) from error
        examples = other.train if self.part == "train" else other.test
        chosen = torch.from_numpy(_images.capped(len(examples.targets), self.max_images, seed))
        targets = examples.targets[chosen]
        if torch.bincount(targets).count_nonzero() < 2:
            raise ValueError(f"dataset must have examples of two classes at least, got {len(targets)} of one class")
        return ServerData(examples.inputs[chosen], targets, len(other.class_names), in_domain=False), data
