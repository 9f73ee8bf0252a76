"""FedSAM (Qu et al., ICML 2022): FedAvg with sharpness-aware clients. https://arxiv.org/abs/2206.02618"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Params, Update, make_update
from fedlab_runner.algorithms.shared.averaging_server import AveragingServer
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class _Ascent:
    """The ascent rho g / |g| to the parameters of the second gradient."""

    rho: float

    def __call__(self, g: Tensor) -> Tensor:
        step: Tensor = self.rho * g / (torch.linalg.vector_norm(g) + 1e-16)
        return step


@dataclass(frozen=True)
class FedSAM(AveragingServer):
    """FedAvg whose clients step along the gradient at w + rho g / |g|, where g is the gradient at w on the same
    minibatch.

    Batch norm's statistics are those at w. The other fields are those of FedAvg.
    """

    rho: float

    step_copies: ClassVar[int] = 2  # the model at which the second gradient is taken, and that gradient

    def __post_init__(self) -> None:
        at_least(0, rho=self.rho)
        super().__post_init__()

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        return make_update(cohort.family, x, cohort.train(x, perturb=_Ascent(self.rho)), self.late_policy)

    def operations(self, fed: Federation, local: float) -> float:
        return 2 * local  # two gradients a step
