"""FedAsync (Xie, Koyejo and Gupta, 2019), Algorithm 1. https://arxiv.org/abs/1903.03934"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Models, Params
from fedlab_runner.core.additions import Proximal
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import at_least, one_of, unused, within

# By value of the field `staleness`: s(tau) of section 5.2, and the paper's values of its parameters. The hinge is 1 up
# to b.
STALENESS: dict[str, Callable[..., Tensor]] = {
    "constant": lambda tau: torch.ones_like(tau),
    "polynomial": lambda tau, a=0.5: (tau + 1) ** -a,
    "hinge": lambda tau, a=10.0, b=4.0: 1 / (a * (tau - b).clamp_min(0) + 1),
}


@dataclass(frozen=True)
class FedAsync(ServerAlgorithm[Params, Models]):
    """The server mixes each arriving model y into its own: x <- (1 - alpha s(tau)) x + alpha s(tau) y.

    `staleness` (constant, polynomial, hinge) chooses s, which falls with the staleness tau, in rounds. `a` and `b` are
    its parameters (null: the paper's values). `rho` weighs the clients' proximal term rho/2 ||w - x||^2.
    """

    alpha: float
    staleness: str
    a: float | None
    b: float | None
    rho: float

    model_copies: ClassVar[int] = 1  # clients send the trained model

    def __post_init__(self) -> None:
        within("[0, 1]", alpha=self.alpha)
        one_of(STALENESS, staleness=self.staleness)
        at_least(0, a=self.a, b=self.b, rho=self.rho)
        known = signature(STALENESS[self.staleness]).parameters
        unused(f"staleness={self.staleness}", **{k: v for k, v in self._staleness_keys.items() if k not in known})

    @property
    def _staleness_keys(self) -> dict[str, float]:
        """The keys of s that are not null."""
        return {key: value for key, value in (("a", self.a), ("b", self.b)) if value is not None}

    def init(self, fed: Federation) -> Params:
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> Models:
        x = state.params
        return Models(cohort.train(x, penalty=Proximal(self.rho) if self.rho else None, common=cohort.near(x)))

    def server_step(self, state: Params, arrivals: Updates[Models], fed: Federation) -> Params:
        x = state.params
        alphas = self.alpha * STALENESS[self.staleness](arrivals.staleness.to(x.dtype), **self._staleness_keys)
        for y, alpha in zip(arrivals.upload.models, alphas, strict=True):
            x = fed.optimized(x, torch.lerp(x, y, alpha))
        return Params(x)
