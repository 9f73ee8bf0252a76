"""q-FedAvg (Li, Sanjabi, Beirami and Smith, ICLR 2020), Algorithm 2. https://arxiv.org/abs/1905.10497"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import WEIGHTINGS, Params, make_update, stepped
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import above, at_least, one_of

MIN_LOSS = 1e-10  # added to each client's loss, as in the authors' code: F^(q - 1) of a loss of 0 is infinite


class QFedAvgUpload(NamedTuple):
    """A client's change times F_k^q, its batch norm statistics, and its part of the step's denominator."""

    rows: Tensor  # F_k^q (y - x) [K, P]: minus the paper's Delta_k, divided by L
    statistics: Tensor  # [K, B]
    h: Tensor  # q F_k^(q-1) L |y - x|^2 + F_k^q [K]: the paper's h_k, divided by L


@dataclass(frozen=True)
class QFedAvg(ServerAlgorithm[Params, QFedAvgUpload]):
    """FedAvg for a fair federation: it minimises the mean of F_k^(q + 1), where F_k is client k's loss.

    F_k is the mean cross entropy of the received model over all the client's examples. The server steps by the sum of
    F_k^q (y_k - x) over the sum of q F_k^(q-1) L |y_k - x|^2 + F_k^q. With `q` 0 the step is FedAvg's. `lipschitz` is
    the paper's L (null: 1 over the round's learning rate, as in the paper). `weighting` says how clients count in both
    sums (uniform: the paper's, size). The server adds late changes to its present model; their F_k are those of the
    models that these clients received.
    """

    q: float
    lipschitz: float | None
    weighting: str

    averages: ClassVar[bool] = True
    reads_sums: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(0, q=self.q)
        above(0, lipschitz=self.lipschitz)
        one_of(WEIGHTINGS, weighting=self.weighting)

    def init(self, fed: Federation) -> Params:
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> QFedAvgUpload:
        x = state.params
        loss = cohort.losses(x).to(x.dtype) + MIN_LOSS  # F_k(w^t)
        rows, statistics = make_update(cohort.family, x, cohort.train(x), "delta")
        square = torch.linalg.vector_norm(rows, dim=1).square()
        at_rest = cohort.lr == 0  # models do not move, whatever L is
        lipschitz = 1.0 if at_rest else self.lipschitz or 1 / cohort.lr
        h = self.q * loss ** (self.q - 1) * lipschitz * square + loss**self.q  # line 6
        return QFedAvgUpload(rows.mul_((loss**self.q).unsqueeze(1)), statistics, h)

    def server_step(self, state: Params, arrivals: Updates[QFedAvgUpload], fed: Federation) -> Params:
        if not len(arrivals):
            return state
        rows, statistics, h = (arrivals.mean(each, uniform=self.weighting == "uniform") for each in arrivals.upload)
        step = rows / h if h > 0 else rows  # all losses to the power q may be 0 in the run's precision
        return Params(stepped(state.params, step, statistics))  # line 7

    def operations(self, fed: Federation, local: float) -> float:
        return local * (1 + 1 / (3 * (fed.local.epochs or 1)))  # a pass without gradients
