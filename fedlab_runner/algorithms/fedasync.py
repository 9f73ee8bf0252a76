"""FedAsync (Xie, Koyejo and Gupta, 2019), Algorithm 1. https://arxiv.org/abs/1903.03934"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Models, Params
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates
from fedlab_runner.core.work import proximal

# s(tau) of section 5.2; the hinge is 1 up to b
STALENESS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "constant": lambda tau, a, b: torch.ones_like(tau),
    "polynomial": lambda tau, a, b: (tau + 1) ** -a,
    "hinge": lambda tau, a, b: 1 / (a * (tau - b).clamp_min(0) + 1),
}


@dataclass(frozen=True)
class FedAsync(ServerAlgorithm[Params, Models]):
    """Each arriving model is mixed into the server's, x <- (1 - alpha s(tau)) x + alpha s(tau) y, the staler the
    less.

    `staleness` (constant, polynomial, hinge) with parameters a and b is s; `rho` is the weight of the clients'
    proximal term rho/2 ||w - x||^2.
    """

    alpha: float
    staleness: str
    a: float
    b: float
    rho: float

    model_copies: ClassVar[int] = 1  # what is sent takes the place of what was trained

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}")
        if self.staleness not in STALENESS:
            raise ValueError(f"staleness must be one of {', '.join(STALENESS)}, got {self.staleness}")
        for name in ("a", "b", "rho"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")

    def init(self, fed: Federation) -> Params:
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> Models:
        x = state.params
        return Models(cohort.train(x, loss=proximal(cohort.family, x, self.rho) if self.rho else None))

    def server_step(self, state: Params, arrivals: Updates[Models], fed: Federation) -> Params:
        x = state.params
        alphas = self.alpha * STALENESS[self.staleness](arrivals.staleness.to(x.dtype), self.a, self.b)
        for y, alpha in zip(arrivals.upload.models, alphas, strict=True):
            x = torch.lerp(x, y, alpha)
        return Params(x)

    def models(self, state: Params) -> Tensor:
        return state.params
