"""AdamW (Loshchilov and Hutter, ICLR 2019) on the server. https://arxiv.org/abs/1711.05101"""

from dataclasses import dataclass

from torch import Tensor

from fedlab_runner.server_optimizers.adam import ServerAdam
from fedlab_runner.server_optimizers.base import Moments
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class ServerAdamW(ServerAdam):
    """`server_optimizer=adam` that also shrinks the parameters by lr times `weight_decay` at each step."""

    weight_decay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, weight_decay=self.weight_decay)

    def step(self, x: Tensor, delta: Tensor, moments: Moments, t: int) -> tuple[Tensor, Moments]:
        return super().step(x * (1 - self.lr * self.weight_decay), delta, moments, t)
