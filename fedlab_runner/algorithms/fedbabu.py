"""FedBABU (Oh et al., ICLR 2022), Algorithm 1. https://arxiv.org/abs/2106.06042"""

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


@dataclass(frozen=True)
class FedBABU(ServerAlgorithm[Params, Update]):
    """FedAvg of the body alone: the head, which is what stays at home, is the same random one everywhere, always.

    Personal models come from fine-tuning the server's at evaluation, head included (`tuned/own` of the evaluation
    matrix, `evaluation.fine_tune_epochs`). The fields are FedAvg's.
    """

    late_policy: str
    weighting: str
    server_lr: float

    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        check_averaging(self.late_policy, self.weighting, self.server_lr)

    def init(self, fed: Federation) -> Params:
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        y = cohort.train(x, frozen=cohort.at_home)  # learning rates: alpha for the body, 0 for the head
        return make_update(cohort.family, x, y, self.late_policy)

    def server_step(self, state: Params, arrivals: Updates[Update], fed: Federation) -> Params:
        return Params(average(state.params, arrivals, self.late_policy, self.weighting, self.server_lr))

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving)
