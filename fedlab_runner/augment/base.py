"""The contract of an augmentation: how a training example changes each time a client sees it. n examples.

An augmentation has a finite number of views of each example, and a number names a view. Plans of minibatches hold
nothing but example and view numbers, so executors know of no augmentation. Each choice is a frozen dataclass in a file
of this folder, with conf/augment/<file>.yaml.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor


class Augment(ABC):
    """A change of stored training examples, before they are normalised.

    All methods are pure functions of the fields and their arguments: the client's minibatch stream draws the random
    numbers, so that every executor sees the same views.
    """

    numbers: ClassVar[int]  # how many random numbers, uniform in [0, 1), decide the view of an example

    @abstractmethod
    def num_views(self, shape: torch.Size) -> int:
        """How many views an example of this shape has, >= 1; 1 is no augmentation. Called once, when data are loaded.

        Raises ValueError, named after the field, where examples of this shape have no views.
        """

    @abstractmethod
    def views(self, drawn: np.ndarray, shape: torch.Size) -> np.ndarray:
        """The views [n] int64, from 0, of examples of this shape for the drawn numbers [n, `numbers`] float64."""

    @abstractmethod
    def apply(self, inputs: Tensor, views: Tensor) -> Tensor:
        """The views [n] int64 of stored inputs [n, ...]; a tensor of the inputs' shape, type and device.

        The operations are the same for all values of `views` and none waits for a GPU, so that a CUDA graph can record
        them.
        """
