"""FedProx (Li et al., MLSys 2020), Algorithm 2. https://arxiv.org/abs/1812.06127"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlab_runner.algorithms.shared.averaging import (
    Params,
    Update,
    all_discarded,
    average,
    check_averaging,
    make_update,
)
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates
from fedlab_runner.core.work import proximal
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class FedProx(ServerAlgorithm[Params, Update]):
    """FedAvg whose clients also minimise mu/2 ||w - x||^2, the distance to the received model x (trainable parameters).

    The other fields are FedAvg's.
    """

    mu: float
    late_policy: str
    weighting: str
    server_lr: float

    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(0, mu=self.mu)
        check_averaging(self.late_policy, self.weighting, self.server_lr)

    def init(self, fed: Federation) -> Params:
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        y = cohort.train(x, loss=proximal(cohort.family, x, self.mu, cohort.shared))  # Eq 2
        return make_update(cohort.family, x, y, self.late_policy)

    def server_step(self, state: Params, arrivals: Updates[Update], fed: Federation) -> Params:
        return Params(average(state.params, arrivals, self.late_policy, self.weighting, self.server_lr))

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving)
