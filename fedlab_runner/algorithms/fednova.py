"""FedNova (Wang et al., NeurIPS 2020): FedAvg normalised by local steps. https://arxiv.org/abs/2007.07481"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Params, check_averaging, stepped
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.optimizer import SGD
from fedlab_runner.core.updates import Updates
from fedlab_runner.core.work import proximal
from fedlab_runner.utils.errors import UserError


class FedNovaUpload(NamedTuple):
    """A client's change by unit of normalised work, its batch norm statistics, and how much work it did."""

    d: Tensor  # d_j = (x - y_j) / a_j [K, P]
    statistics: Tensor  # [K, B]
    tau: Tensor  # [K]


@dataclass(frozen=True)
class FedNova(ServerAlgorithm[Params, FedNovaUpload]):
    """Each client's change counts by unit of its local work a_j, which the number of its steps, their momentum and the
    proximal term `mu` decide; the server goes tau_eff, the mean work, along the mean of them.

    `weighting` is FedAvg's. Late changes are added to today's model.
    """

    mu: float
    weighting: str

    model_copies: ClassVar[int] = 4  # y, y - x by parts and together

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise ValueError(f"mu must be >= 0, got {self.mu}")
        check_averaging("delta", self.weighting, server_lr=1.0)

    def check(self, fed: Federation) -> None:
        if not isinstance(fed.local.make_optimizer(), SGD):
            raise UserError(f"algorithm=fednova normalises steps of SGD: use local=sgd, got {fed.local.optimizer}")

    def init(self, fed: Federation) -> Params:
        self.check(fed)
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> FedNovaUpload:
        x, p = state.params, cohort.family.num_params
        y = cohort.train(x, loss=proximal(cohort.family, x, self.mu) if self.mu else None)
        a = self._work(cohort).to(x)
        tau = cohort.num_steps.to(x) if self.mu else a  # the authors' code, for a proximal term
        return FedNovaUpload((x[:p] - y[:, :p]) / a.unsqueeze(1), y[:, p:], tau)

    def _work(self, cohort: Cohort) -> Tensor:
        """a_j, the sum of the weights with which a client's gradients are in its change [K]."""
        optimizer, steps = cohort.local.make_optimizer(), cohort.num_steps.tolist()
        assert isinstance(optimizer, SGD)
        after = accumulated(optimizer, cohort.lr * self.mu, max(steps, default=0))
        return torch.tensor([after[n] for n in steps], dtype=torch.float64)

    def server_step(self, state: Params, arrivals: Updates[FedNovaUpload], fed: Federation) -> Params:
        if not len(arrivals):
            return state
        d, statistics, tau_eff = (arrivals.mean(each, uniform=self.weighting == "uniform") for each in arrivals.upload)
        fed.metrics.report(tau_eff=float(tau_eff))
        return Params(stepped(state.params, -tau_eff * d, statistics))

    def models(self, state: Params) -> Tensor:
        return state.params


def accumulated(optimizer: SGD, shrinkage: float, steps: int) -> list[float]:
    """How far SGD goes, in learning rates, in 0 to `steps` steps along gradients of one, when a proximal term draws it
    back by `shrinkage` (learning rate times mu) of the way it has come.
    """
    a, velocity, distances = 0.0, 0.0, [0.0]
    for _ in range(steps):
        gradient = 1 - shrinkage * a
        velocity = optimizer.momentum * velocity + gradient
        a += gradient + optimizer.momentum * velocity if optimizer.nesterov else velocity
        distances.append(a)
    return distances
