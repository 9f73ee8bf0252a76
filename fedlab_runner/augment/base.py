"""What an augmentation is: a finite number of views of each example, one of which is drawn whenever it is trained on.

A number names a view, so that where minibatches are planned and passed on, nothing but example numbers travels:
executors know of no augmentation. n examples.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor


class Augment(ABC):
    """A change of training examples as they are stored, before they are normalised."""

    numbers: ClassVar[int]  # that are drawn for each example, uniform in [0, 1)

    @abstractmethod
    def num_views(self, shape: torch.Size) -> int:
        """How many views an example of this shape has, 1 where nothing is changed; ValueError where it has none."""

    @abstractmethod
    def views(self, drawn: np.ndarray, shape: torch.Size) -> np.ndarray:
        """The views [n] int64 of examples of this shape that the drawn numbers [n, `numbers`] stand for."""

    @abstractmethod
    def apply(self, inputs: Tensor, views: Tensor) -> Tensor:
        """These views [n] of stored inputs [n, ...]: the same operations whatever the views are, and none that waits
        for a GPU, so that a CUDA graph can record them.
        """
