"""CIFAR-10 (Krizhevsky, 2009): 50,000 + 10,000 colour 32x32 images of ten classes. https://www.cs.toronto.edu/~kriz/cifar.html

Licence: the authors state none; their page asks for a citation of the technical report.
"""

from dataclasses import dataclass

from fedlab_runner.datasets import _cifar, _statistics
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data


@dataclass(frozen=True)
class CIFAR10(Dataset):
    """The set in root/cifar-10-batches-py."""

    root: str
    download: bool
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        _statistics.check(self.mean, self.std, channels=3)

    def load(self, seed: int) -> Data:
        import torchvision

        return _cifar.load(
            torchvision.datasets.CIFAR10, self.root, self.download, self.mean, self.std, target="", stratum=""
        )
