"""CIFAR-100 (Krizhevsky, 2009): 50,000 + 10,000 colour 32x32 images of 100 classes. https://www.cs.toronto.edu/~kriz/cifar.html

Licence: the authors state none; their page asks for a citation of the technical report.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.datasets import _cifar, _statistics
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data


@dataclass(frozen=True)
class CIFAR100(Dataset):
    """The set in root/cifar-100-python, with its 100 fine labels."""

    root: str
    download: bool
    mean: list[float]
    std: list[float]

    target: ClassVar[str] = "fine_"  # the prefix of the labels that models learn

    def __post_init__(self) -> None:
        _statistics.check(self.mean, self.std, channels=3)

    def load(self, seed: int) -> Data:
        import torchvision

        return _cifar.load(
            torchvision.datasets.CIFAR100,
            self.root,
            self.download,
            self.mean,
            self.std,
            target=self.target,
            stratum="fine_",
        )
