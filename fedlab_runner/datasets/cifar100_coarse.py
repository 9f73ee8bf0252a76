"""CIFAR-100 learnt by its 20 superclasses and shared out by its 100 fine classes, as Feddle does.

Licence: that of CIFAR-100: none stated by the authors, who ask for a citation.
"""

from dataclasses import dataclass

from fedlab_runner.data import Data
from fedlab_runner.datasets import _cifar, _statistics


@dataclass(frozen=True)
class CIFAR100Coarse:
    """The set in root/cifar-100-python; which superclass a fine class is in, the files say."""

    root: str
    download: bool
    mean: list[float]
    std: list[float]

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
            target="coarse_",
            stratum="fine_",
        )
