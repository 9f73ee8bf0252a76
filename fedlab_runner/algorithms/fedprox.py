"""FedProx (Li et al., MLSys 2020), Algorithm 2. https://arxiv.org/abs/1812.06127"""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.algorithms.shared.averaging import Params, Update, make_update
from fedlab_runner.algorithms.shared.averaging_server import AveragingServer
from fedlab_runner.core.additions import Proximal
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class FedProx(AveragingServer):
    """FedAvg whose clients also minimise mu/2 ||w - x||^2, the distance to the received model x (trainable parameters).

    The other fields are those of FedAvg.
    """

    mu: float

    step_copies: ClassVar[int] = 1  # the penalty's gradient

    def __post_init__(self) -> None:
        at_least(0, mu=self.mu)
        super().__post_init__()

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        y = cohort.train(x, penalty=Proximal(self.mu), common=cohort.near(x))  # Eq 2
        return make_update(cohort.family, x, y, self.late_policy)
