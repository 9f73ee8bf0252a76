"""CIFAR-100 with its 20 superclasses as targets, partitioned by its 100 fine classes, as in Feddle.

Licence: as for CIFAR-100, the authors state none and ask for a citation.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.datasets.cifar100 import CIFAR100


@dataclass(frozen=True)
class CIFAR100Coarse(CIFAR100):
    """The set in root/cifar-100-python: models learn the 20 superclasses, partitions see the 100 fine classes."""

    target: ClassVar[str] = "coarse_"
