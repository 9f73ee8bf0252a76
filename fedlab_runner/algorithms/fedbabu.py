"""FedBABU (Oh et al., ICLR 2022), Algorithm 1. https://arxiv.org/abs/2106.06042"""

from dataclasses import dataclass

from fedlab_runner.algorithms.shared.averaging import Params, Update, make_update
from fedlab_runner.algorithms.shared.averaging_server import AveragingServer
from fedlab_runner.core.cohort import Cohort


@dataclass(frozen=True)
class FedBABU(AveragingServer):
    """FedAvg of the body alone: the head, the part that stays at home, is the same random head at all clients, always.

    At an evaluation clients fine-tune the server's model, with its head, into personal models (`tuned/own` of the
    evaluation matrix, `evaluation.fine_tune_epochs`). The fields are those of FedAvg.
    """

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        y = cohort.train(x, frozen=cohort.at_home)  # learning rates: alpha for the body, 0 for the head
        return make_update(cohort.family, x, y, self.late_policy)

    def trains_home(self) -> bool:
        return False
