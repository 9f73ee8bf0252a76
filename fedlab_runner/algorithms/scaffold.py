"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1, option II. https://arxiv.org/abs/1910.06378"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedlab_runner.algorithm import Footprint, Load, ServerAlgorithm, table
from fedlab_runner.averaging import outgoing
from fedlab_runner.federation import Arrivals, Cohort, Federation
from fedlab_runner.tables import Kept, check_place


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
    c_i: dict[int, Kept]  # c_i, each [P], by client; zero for a client that has never reported


@dataclass(frozen=True)
class SCAFFOLD(ServerAlgorithm[State, Upload]):
    """Clients correct their gradients by how theirs differ from everyone's: g - c_i + c. `server_lr` is the paper's
    eta_g.

    Option II reads the mean gradient off the distance travelled, which assumes plain SGD (no momentum) as the local
    optimiser. The clients' control variates are kept on the `device`, the `host` or `disk` (`controls_on`).
    """

    server_lr: float
    controls_on: str

    copies: ClassVar[int] = 3  # c_i, and the changes of both
    sent: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_place("controls_on", self.controls_on)
        if not self.server_lr > 0:
            raise ValueError(f"server_lr must be > 0, got {self.server_lr}")

    def footprint(self, fed: Federation, load: Load) -> Footprint:
        held = table("controls_on", self.controls_on, load.ever * fed.task.num_params)
        return Footprint(self.copies, self.sent, held)

    def init(self, fed: Federation) -> State:
        x = fed.task.init(fed.seed)
        c = x.new_zeros(fed.task.num_params)
        return State(x, c, c_i={})

    def broadcast(self, state: State) -> Sequence[Tensor]:
        return state.params, state.c

    def client_update(self, state: State, cohort: Cohort) -> Upload:
        x, c, known = state.params, state.c, state.c_i
        rows, c_i = cohort.rows(self.controls_on, len(c)), c.new_zeros(len(cohort), len(c))
        for own, i in zip(c_i, cohort.client_ids.tolist(), strict=True):
            if i in known:
                own.copy_(rows.get(known[i]))
        y = cohort.train(x, correct=lambda g, c_i: (g - c_i).add_(c), per_client=(c_i,))  # line 10
        delta_y = outgoing(x, y, "delta").rows
        delta_c = delta_y[:, : len(c)] / cohort.num_steps.unsqueeze(1)
        delta_c.div_(cohort.lr).add_(c).neg_()  # line 12, (ii): c_plus - c_i
        return Upload(delta_y, delta_c)

    def server_step(self, state: State, arrivals: Arrivals[Upload], fed: Federation) -> State:
        delta_y, delta_c = arrivals.upload
        x = state.params + self.server_lr * arrivals.mean(delta_y, uniform=True)  # line 17
        c = state.c + delta_c.sum(0) / fed.num_clients
        rows, c_i = fed.rows(self.controls_on, len(c)), dict(state.c_i)
        for i, delta in zip(arrivals.ids.tolist(), delta_c, strict=True):
            if i in c_i:
                delta = rows.get(c_i[i]) + delta
                rows.drop(c_i[i])
            c_i[i] = rows.put(delta)
        return State(x, c, c_i)

    def models(self, state: State) -> Tensor:
        return state.params

    def cached(self, state: State) -> int:
        return state.c.numel()  # the clients keep their own
