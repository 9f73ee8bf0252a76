"""Ditto (Li et al., ICML 2021), Algorithm 1. https://arxiv.org/abs/2012.04221"""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.algorithms.shared.averaging import make_update
from fedlab_runner.algorithms.shared.personal import Personal, PersonalState, PersonalUpdate
from fedlab_runner.core.additions import Proximal
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class Ditto(Personal):
    """FedAvg, whose clients also train a personal model v: on their loss plus lam/2 ||v - x||^2, the distance to the
    received model x (trainable parameters that are shared).

    A client trains both models with the same minibatches, optimiser and number of steps.
    """

    lam: float

    model_copies: ClassVar[int] = 2  # the update and the personal models
    training_copies: ClassVar[int] = 3  # the update, and the personal models before and after training
    step_copies: ClassVar[int] = 1  # the penalty's gradient

    def __post_init__(self) -> None:
        at_least(0, lam=self.lam)
        super().__post_init__()

    def client_update(self, state: PersonalState, cohort: Cohort) -> PersonalUpdate:
        x, v = state.params, self.personal(state, cohort)
        update = make_update(cohort.family, x, cohort.train(x), self.late_policy)
        near = cohort.near(x)  # h_k(v; x)
        v = cohort.alone().train(v, penalty=Proximal(self.lam), common=near, counted=False)
        return PersonalUpdate(*update, v)

    def operations(self, fed: Federation, local: float) -> float:
        return 2 * local
