"""FedYogi (Reddi et al., ICLR 2021, Algorithm 2). https://arxiv.org/abs/2003.00295"""

from dataclasses import dataclass

from torch import Tensor

from fedlab_runner.server_optimizers._adaptive import Decaying


@dataclass(frozen=True)
class ServerYogi(Decaying):
    """Yogi on the server: v <- v - (1 - beta2) delta^2 sign(v - delta^2); with algorithm=fedavg it is FedYogi.

    The other formulas and keys are those of `server_optimizer=adam`.
    """

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v.addcmul(square, (v - square).sign_(), value=self.beta2 - 1)
