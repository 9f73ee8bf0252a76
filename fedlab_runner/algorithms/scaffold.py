"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1, option II. https://arxiv.org/abs/1910.06378"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedlab_runner.algorithm import ServerAlgorithm
from fedlab_runner.federation import Arrivals, Cohort, Federation


class Upload(NamedTuple):
    """The changes of a client's model and of its control variate."""

    delta_y: Tensor  # [K, D]
    delta_c: Tensor  # [K, P]


class State(NamedTuple):
    """The server's model and all control variates, zero at the start; c is the mean of the c_i after every round
    without late updates.
    """

    params: Tensor  # x    [D]
    c: Tensor  # c    [P]
    c_i: Tensor  # c_i  [N, P]


@dataclass(frozen=True)
class SCAFFOLD(ServerAlgorithm[State, Upload]):
    """Clients correct their gradients by how theirs differ from everyone's: g - c_i + c. `server_lr` is the paper's
    eta_g.

    Option II reads the mean gradient off the distance travelled, which assumes plain SGD (no momentum) as the local
    optimiser.
    """

    server_lr: float

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise ValueError(f"server_lr must be > 0, got {self.server_lr}")

    def init(self, fed: Federation) -> State:
        x = fed.task.init(fed.seed)
        c = x.new_zeros(fed.task.num_params)
        return State(x, c, c_i=c.new_zeros(fed.num_clients, len(c)))

    def broadcast(self, state: State) -> Sequence[Tensor]:
        return state.params, state.c

    def client_update(self, state: State, cohort: Cohort) -> Upload:
        x, c, c_i = state.params, state.c, state.c_i[cohort.ids]
        y = cohort.train(x, correct=lambda g, c_i: g - c_i + c, per_client=(c_i,))  # line 10
        delta_y = y - x
        delta_c = -c - delta_y[:, : len(c)] / cohort.num_steps.unsqueeze(1) / cohort.lr  # line 12, (ii): c_plus - c_i
        return Upload(delta_y, delta_c)

    def server_step(self, state: State, arrivals: Arrivals[Upload], fed: Federation) -> State:
        delta_y, delta_c = arrivals.upload
        x = state.params + self.server_lr * arrivals.mean(delta_y, uniform=True)  # line 17
        c = state.c + delta_c.sum(0) / fed.num_clients
        return State(x, c, state.c_i.index_add(0, arrivals.ids, delta_c))

    def models(self, state: State) -> Tensor:
        return state.params

    def cached(self, state: State) -> int:
        return state.c.numel()  # the clients keep their own
