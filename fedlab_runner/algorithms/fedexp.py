"""FedExP (Jhunjhunwala, Wang and Joshi, ICLR 2023), Algorithm 1. https://arxiv.org/abs/2301.09604"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import check_averaging, make_update, stepped
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import at_least


class FedExPState(NamedTuple):
    """The server's model and the one before it."""

    params: Tensor  # x [D]
    previous: Tensor  # [D]


class FedExPUpload(NamedTuple):
    """An Update, and what the server computes of it."""

    rows: Tensor  # y - x [K, P]
    statistics: Tensor  # [K, B]
    squares: Tensor  # squared lengths of the rows [K]


@dataclass(frozen=True)
class FedExP(ServerAlgorithm[FedExPState, FedExPUpload]):
    """FedAvg with a server step that grows as client updates disagree. Its factor over the trainable parameters is
    max(1, mean |Delta_j|^2 / (2 (|mean Delta_j|^2 + eps))).

    With `eval_avg_last2` the run evaluates the mean of the last two models, as the paper does; clients receive the last
    model. `weighting` is that of FedAvg. The server adds late changes to its present model.
    """

    eps: float
    eval_avg_last2: bool
    weighting: str

    averages: ClassVar[bool] = True
    reads_sums: ClassVar[bool] = True
    known: ClassVar[tuple[str, ...]] = ("squares",)
    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(0, eps=self.eps)
        check_averaging("delta", self.weighting, server_lr=1.0)

    def init(self, fed: Federation) -> FedExPState:
        x = fed.family.init(fed.seed)
        return FedExPState(x, previous=x)

    def client_update(self, state: FedExPState, cohort: Cohort) -> FedExPUpload:
        x = state.params
        rows, statistics = make_update(cohort.family, x, cohort.train(x), "delta")
        return FedExPUpload(rows, statistics, torch.linalg.vector_norm(rows, dim=1).square())

    def server_step(self, state: FedExPState, arrivals: Updates[FedExPUpload], fed: Federation) -> FedExPState:
        if not len(arrivals):
            return state
        x, uniform = state.params, self.weighting == "uniform"
        mean, statistics, spread = (arrivals.mean(each, uniform=uniform) for each in arrivals.upload)
        denominator = 2 * (float(mean.square().sum()) + self.eps)
        server_lr = max(1.0, float(spread) / denominator) if denominator else 1.0
        fed.metrics.report(server_lr=server_lr)
        return FedExPState(stepped(x, server_lr * mean, statistics), previous=x)

    def models(self, state: FedExPState) -> Tensor:
        return (state.params + state.previous) / 2 if self.eval_avg_last2 else state.params
