"""FedSAM (Qu et al., ICML 2022): FedAvg with sharpness-aware clients. https://arxiv.org/abs/2206.02618"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

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
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class FedSAM(ServerAlgorithm[Params, Update]):
    """FedAvg whose clients step along the gradient at w + rho g / |g|; g is the gradient at w on the same minibatch.

    Batch norm's statistics are those at w. The other fields are FedAvg's.
    """

    rho: float
    late_policy: str
    weighting: str
    server_lr: float

    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(0, rho=self.rho)
        check_averaging(self.late_policy, self.weighting, self.server_lr)

    def init(self, fed: Federation) -> Params:
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        def ascend(g: Tensor) -> Tensor:
            step: Tensor = self.rho * g / (torch.linalg.vector_norm(g) + 1e-16)
            return step

        x = state.params
        return make_update(cohort.family, x, cohort.train(x, perturb=ascend), self.late_policy)

    def server_step(self, state: Params, arrivals: Updates[Update], fed: Federation) -> Params:
        return Params(average(state.params, arrivals, self.late_policy, self.weighting, self.server_lr))

    def operations(self, fed: Federation, local: float) -> float:
        return 2 * local  # two gradients a step

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving)
