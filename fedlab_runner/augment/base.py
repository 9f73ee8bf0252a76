"""The contract of an augmentation, which changes a training example each time a client sees it. n examples.

An augmentation has a finite number of views of each example, and each view has a number. Plans of minibatches hold only
numbers of examples and views, so that executors need not know augmentations. Each choice is a frozen dataclass in a
file of this folder, with conf/augment/<file>.yaml.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor


class Augment(ABC):
    """A change of stored training examples, before their normalisation.

    All methods are pure functions of the fields and their arguments. The client's minibatch stream draws the random
    numbers, so that every executor uses the same views.
    """

    numbers: ClassVar[int]  # the number of random numbers, uniform in [0, 1), that decide the view of an example

    @abstractmethod
    def num_views(self, shape: torch.Size) -> int:
        """The number of views >= 1 of an example of this shape (1: no augmentation). The run calls this once, with
        data.

        Raises ValueError, named after the field, if examples of this shape have no views.
        """

    @abstractmethod
    def views(self, drawn: np.ndarray, shape: torch.Size) -> np.ndarray:
        """The views [n] int64, from 0, of examples of this shape for the drawn numbers [n, `numbers`] float64."""

    @abstractmethod
    def apply(self, inputs: Tensor, views: Tensor) -> Tensor:
        """The views [n] int64 of stored inputs [n, ...], as a tensor of the inputs' shape, type and device.

        The operations must be the same for all values of `views`, and none may wait for a GPU, so that a CUDA graph can
        record them.
        """
