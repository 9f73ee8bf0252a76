"""FedAdagrad (Reddi et al., ICLR 2021, Algorithm 2). https://arxiv.org/abs/2003.00295"""

from dataclasses import dataclass

from torch import Tensor

from fedlab_runner.server_optimizers._adaptive import Adaptive


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """Adagrad on the server: v <- v + delta^2; with algorithm=fedavg it is FedAdagrad.

    m <- beta1 m + (1 - beta1) delta, and the server steps by lr m / (sqrt(v) + tau). v starts at `initial` (null:
    tau^2).
    """

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
