"""The contract of a server optimiser (Reddi et al., ICLR 2021, Algorithm 1): how the server's model follows its steps.

Each choice is a frozen dataclass in a file of this folder, with conf/server_optimizer/<file>.yaml.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

Moments = tuple[Tensor, ...]  # what an optimiser keeps from step to step, each [P]


@dataclass(frozen=True)
class ServerOptimizer(ABC):
    """An update rule on the server's trainable parameters [P]; it takes minus the algorithm's step as the gradient.

    `Federation.optimized` calls it at each step and keeps the moments. Batch norm's statistics, which are no
    parameters, and values at home stay as the algorithm leaves them. Both methods are pure: they write into none of
    their tensors.
    """

    acts: ClassVar[bool] = True
    """False: every step stays as the algorithm makes it, to the bit, and neither method is called."""

    operations: ClassVar[int]
    """Floating-point operations of a step for each parameter, for the metric `cost/server_gflops`."""

    @abstractmethod
    def init(self, x: Tensor) -> Moments:
        """The moments before the first step, for parameters like x [P]; always as many."""

    @abstractmethod
    def step(self, x: Tensor, delta: Tensor, moments: Moments, t: int) -> tuple[Tensor, Moments]:
        """The next parameters [P] and moments where the algorithm goes from x to x + `delta`; t counts steps from 0."""
