"""SGD with momentum on the server: FedAvgM (Hsu, Qi and Brown, 2019). https://arxiv.org/abs/1909.06335"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlab_runner.server_optimizers.base import Moments, ServerOptimizer
from fedlab_runner.utils.validate import above, within


@dataclass(frozen=True)
class ServerSGD(ServerOptimizer):
    """m <- momentum m + delta; the server steps by lr m, or with `nesterov` by lr (delta + momentum m).

    With algorithm=fedavg it is FedAvgM, with lr 1 and momentum 0 no optimiser.
    """

    operations: ClassVar[int] = 5

    lr: float
    momentum: float
    nesterov: bool

    def __post_init__(self) -> None:
        above(0, lr=self.lr)
        within("[0, 1)", momentum=self.momentum)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum > 0, got momentum 0")

    def init(self, x: Tensor) -> Moments:
        return (x.new_zeros(x.shape),) if self.momentum else ()

    def step(self, x: Tensor, delta: Tensor, moments: Moments, t: int) -> tuple[Tensor, Moments]:
        if not self.momentum:
            return x.add(delta, alpha=self.lr), ()
        m = delta.add(moments[0], alpha=self.momentum)
        return x.add(delta.add(m, alpha=self.momentum) if self.nesterov else m, alpha=self.lr), (m,)
