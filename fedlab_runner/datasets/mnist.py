"""MNIST (LeCun et al., 1998): 60,000 + 10,000 grey 28x28 images of ten digits. http://yann.lecun.com/exdb/mnist/

Licence: no statement by the authors was found. Keras' documentation says that LeCun and Cortes hold the copyright and
that the licence is CC BY-SA 3.0.
"""

from dataclasses import dataclass

from fedlab_runner.datasets import _idx, _statistics
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data


@dataclass(frozen=True)
class MNIST(Dataset):
    """The set in root/MNIST/raw, in the files that torchvision names."""

    root: str
    download: bool
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        _statistics.check(self.mean, self.std, channels=1)

    def load(self, seed: int) -> Data:
        import torchvision

        return _idx.load(torchvision.datasets.MNIST, self.root, self.download, self.mean, self.std)
