"""FedAvg (McMahan et al., AISTATS 2017), Algorithm 1. https://arxiv.org/abs/1602.05629"""

from dataclasses import dataclass

from fedlab_runner.algorithms.shared.averaging import Params, Update, make_update
from fedlab_runner.algorithms.shared.averaging_server import AveragingServer
from fedlab_runner.core.cohort import Cohort


@dataclass(frozen=True)
class FedAvg(AveragingServer):
    """The server's model is the mean of the clients' models.

    `late_policy` says what the server does with late updates: it adds their changes to its present model (delta),
    averages the late models (model) or drops them (discard). `weighting` says how clients count (size, uniform).
    `server_lr` scales the server's step (1: the paper's).
    """

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        return make_update(cohort.family, x, cohort.train(x), self.late_policy)
