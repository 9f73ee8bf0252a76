"""CIFAR-100 learnt by its 20 superclasses and shared out by its 100 fine classes, as Feddle does.

Licence: that of CIFAR-100: none stated by the authors, who ask for a citation.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.datasets.cifar100 import CIFAR100


@dataclass(frozen=True)
class CIFAR100Coarse(CIFAR100):
    """The set in root/cifar-100-python; which superclass a fine class is in, the files say."""

    target: ClassVar[str] = "coarse_"
