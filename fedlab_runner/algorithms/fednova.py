"""FedNova (Wang et al., NeurIPS 2020): FedAvg normalised by local steps. https://arxiv.org/abs/2007.07481"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Params, check_averaging, stepped
from fedlab_runner.core.additions import Proximal
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.optimizer import SGD
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least


class FedNovaUpload(NamedTuple):
    """A client's change for each unit of its work, its batch norm statistics, and its amount of work."""

    d: Tensor  # d_j = (x - y_j) / a_j [K, P]
    statistics: Tensor  # [K, B]
    tau: Tensor  # [K]


@dataclass(frozen=True)
class FedNova(ServerAlgorithm[Params, FedNovaUpload]):
    """The server divides each client's change by its local work a_j and steps by the mean of the results times tau_eff,
    the mean work.

    a_j follows from the client's number of steps, their momentum and the proximal term `mu`. `weighting` is that of
    FedAvg. The server adds late changes to its present model.
    """

    mu: float
    weighting: str

    averages: ClassVar[bool] = True
    reads_sums: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(0, mu=self.mu)
        check_averaging("delta", self.weighting, server_lr=1.0)

    def check(self, fed: Federation) -> None:
        if not isinstance(fed.local.make_optimizer(), SGD):
            raise UserError(f"algorithm=fednova normalises steps of SGD: use local=sgd, got {fed.local.optimizer}")

    def init(self, fed: Federation) -> Params:
        self.check(fed)
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> FedNovaUpload:
        x, p = state.params, cohort.family.num_params
        y = cohort.train(x, penalty=Proximal(self.mu) if self.mu else None, common=cohort.near(x))
        a = self._work(cohort).to(x)
        tau = cohort.num_steps.to(x) if self.mu else a  # with a proximal term the authors' code counts steps
        return FedNovaUpload(y[:, :p].sub_(x[:p]).div_(-a.unsqueeze(1)), y[:, p:], tau)

    def _work(self, cohort: Cohort) -> Tensor:
        """a_j [K], the sum of the weights that a client's gradients have in its change."""
        optimizer, steps = cohort.local.make_optimizer(), cohort.num_steps.tolist()
        assert isinstance(optimizer, SGD)
        after = optimizer.distances(max(steps, default=0), shrinkage=cohort.lr * self.mu)
        return torch.tensor([after[n] for n in steps], dtype=torch.float64)

    def server_step(self, state: Params, arrivals: Updates[FedNovaUpload], fed: Federation) -> Params:
        if not len(arrivals):
            return state
        d, statistics, tau_eff = (arrivals.mean(each, uniform=self.weighting == "uniform") for each in arrivals.upload)
        fed.metrics.report(tau_eff=float(tau_eff))
        return Params(stepped(state.params, -tau_eff * d, statistics))
