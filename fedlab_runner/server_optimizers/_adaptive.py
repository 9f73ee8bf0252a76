"""The shared part of the adaptive server optimisers (Reddi et al., ICLR 2021, Algorithm 2). https://arxiv.org/abs/2003.00295"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedlab_runner.server_optimizers.base import Moments, ServerOptimizer
from fedlab_runner.utils.validate import above, at_least, one_of, within


class Correction(NamedTuple):
    """A correction of the moments' bias towards their start, by factors of the learning rate and of tau."""

    ahead: int  # steps that the correction counts in addition to the steps made
    of_tau: bool  # whether tau has the factor of the second moment's root, because it is added to the corrected moment


CORRECTIONS: dict[str, Correction | None] = {  # by value of the field `bias_correction`
    "none": None,  # Algorithm 2
    "adam": Correction(0, of_tau=True),  # Kingma and Ba, 2015, Algorithm 1; PyTorch, pfl-research
    "keras": Correction(0, of_tau=False),  # Kingma and Ba, 2015, before section 2.1; Reddi et al.'s code
    "flower": Correction(1, of_tau=False),  # Flower's FedAdam, whose first step counts as the second
}


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """m <- beta1 m + (1 - beta1) delta and x <- x + lr m / (sqrt(v) + tau). Each choice defines v."""

    operations: ClassVar[int] = 12

    lr: float
    beta1: float
    tau: float
    initial: float | None

    def __post_init__(self) -> None:
        above(0, lr=self.lr, tau=self.tau)
        within("[0, 1)", beta1=self.beta1)
        at_least(0, initial=self.initial)

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v [P], where `square` [P] is delta squared."""

    def factors(self, t: int) -> tuple[float, float]:
        """The factors of the learning rate and of tau at step t, counted from 0."""
        return 1.0, 1.0

    def init(self, x: Tensor) -> Moments:
        first = self.tau**2 if self.initial is None else self.initial
        return x.new_zeros(x.shape), x.new_full(x.shape, first)

    def step(self, x: Tensor, delta: Tensor, moments: Moments, t: int) -> tuple[Tensor, Moments]:
        m = moments[0].lerp(delta, 1 - self.beta1)
        v = self.second_moment(moments[1], delta.square())
        of_lr, of_tau = self.factors(t)
        return x.addcdiv(m, v.sqrt().add_(of_tau * self.tau), value=of_lr * self.lr), (m, v)


@dataclass(frozen=True)
class Decaying(Adaptive):
    """An adaptive optimiser whose second moment decays by `beta2`, with a bias correction of `CORRECTIONS`."""

    beta2: float
    bias_correction: str

    def __post_init__(self) -> None:
        super().__post_init__()
        within("[0, 1)", beta2=self.beta2)
        one_of(CORRECTIONS, bias_correction=self.bias_correction)

    def factors(self, t: int) -> tuple[float, float]:
        correction = CORRECTIONS[self.bias_correction]
        if correction is None:
            return 1.0, 1.0
        steps = t + 1 + correction.ahead
        root = math.sqrt(1 - self.beta2**steps)
        return root / (1 - self.beta1**steps), root if correction.of_tau else 1.0
