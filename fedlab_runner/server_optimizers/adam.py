"""FedAdam (Reddi et al., ICLR 2021, Algorithm 2). https://arxiv.org/abs/2003.00295"""

from dataclasses import dataclass

from torch import Tensor

from fedlab_runner.server_optimizers._adaptive import Decaying


@dataclass(frozen=True)
class ServerAdam(Decaying):
    """Adam on the server: v <- beta2 v + (1 - beta2) delta^2; with algorithm=fedavg it is FedAdam.

    m <- beta1 m + (1 - beta1) delta, and the server steps by lr m / (sqrt(v) + tau). v starts at `initial` (null:
    tau^2).

    `bias_correction`: none as in Algorithm 2; adam divides m and v by 1 - beta^t, as Kingma and Ba do; keras multiplies
    lr by sqrt(1 - beta2^t) / (1 - beta1^t) and leaves tau; flower does so with t + 1 for t.
    """

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v.lerp(square, 1 - self.beta2)
