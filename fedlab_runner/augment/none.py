"""No augmentation"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.augment.base import Augment


@dataclass(frozen=True)
class NoAugment(Augment):
    """Clients train on the stored examples, unchanged."""

    numbers: ClassVar[int] = 0

    def num_views(self, shape: torch.Size) -> int:
        return 1

    def views(self, drawn: np.ndarray, shape: torch.Size) -> np.ndarray:
        return np.zeros(len(drawn), dtype=np.int64)

    def apply(self, inputs: Tensor, views: Tensor) -> Tensor:
        return inputs
