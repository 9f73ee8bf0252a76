"""Fashion-MNIST (Xiao et al., 2017): 60,000 + 10,000 grey 28x28 images of ten garments. https://arxiv.org/abs/1708.07747

Licence: MIT, by the file LICENSE of the authors' repository (https://github.com/zalandoresearch/fashion-mnist).
"""

from dataclasses import dataclass

from fedlab_runner.datasets import _idx, _statistics
from fedlab_runner.datasets.base import Dataset
from fedlab_runner.datasets.examples import Data


@dataclass(frozen=True)
class FashionMNIST(Dataset):
    """The set in root/FashionMNIST/raw, in the files that torchvision names."""

    root: str
    download: bool
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        _statistics.check(self.mean, self.std, channels=1)

    def load(self, seed: int) -> Data:
        import torchvision

        return _idx.load(torchvision.datasets.FashionMNIST, self.root, self.download, self.mean, self.std)
