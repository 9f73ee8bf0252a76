"""No server optimiser."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlab_runner.server_optimizers.base import Moments, ServerOptimizer


@dataclass(frozen=True)
class NoServerOptimizer(ServerOptimizer):
    """The server makes the steps of the algorithm, as they are."""

    acts: ClassVar[bool] = False
    operations: ClassVar[int] = 0

    def init(self, x: Tensor) -> Moments:
        return ()

    def step(self, x: Tensor, delta: Tensor, moments: Moments, t: int) -> tuple[Tensor, Moments]:
        return x + delta, ()
