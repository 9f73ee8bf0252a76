"""FedExP (Jhunjhunwala, Wang and Joshi, ICLR 2023), Algorithm 1. https://arxiv.org/abs/2301.09604"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Update, check_averaging, make_update, stepped
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import at_least


class FedExPState(NamedTuple):
    """The server's model and the one before it."""

    params: Tensor  # x [D]
    previous: Tensor  # [D]


@dataclass(frozen=True)
class FedExP(ServerAlgorithm[FedExPState, Update]):
    """FedAvg with a server step that grows as client updates disagree. Its factor over the trainable parameters is
    max(1, mean |Delta_j|^2 / 2 (|mean Delta_j|^2 + eps)).

    With `eval_avg_last2` the run evaluates the mean of the last two models, as the paper does; clients receive the last
    model. `weighting` is that of FedAvg. The server adds late changes to its present model.
    """

    eps: float
    eval_avg_last2: bool
    weighting: str

    averages: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(0, eps=self.eps)
        check_averaging("delta", self.weighting, server_lr=1.0)

    def init(self, fed: Federation) -> FedExPState:
        x = fed.family.init(fed.seed)
        return FedExPState(x, previous=x)

    def client_update(self, state: FedExPState, cohort: Cohort) -> Update:
        x = state.params
        return make_update(cohort.family, x, cohort.train(x), "delta")

    def server_step(self, state: FedExPState, arrivals: Updates[Update], fed: Federation) -> FedExPState:
        if not len(arrivals):
            return state
        x, uniform = state.params, self.weighting == "uniform"
        mean, statistics = (arrivals.mean(each, uniform=uniform) for each in arrivals.upload)
        spread = float(arrivals.mean(arrivals.upload.rows.square().sum(1), uniform=uniform))
        denominator = 2 * (float(mean.square().sum()) + self.eps)
        server_lr = max(1.0, spread / denominator) if denominator else 1.0
        fed.metrics.report(server_lr=server_lr)
        return FedExPState(stepped(x, server_lr * mean, statistics), previous=x)

    def models(self, state: FedExPState) -> Tensor:
        return (state.params + state.previous) / 2 if self.eval_avg_last2 else state.params
