"""APFL (Deng, Kamani and Mahdavi, 2020), Algorithm 1. https://arxiv.org/abs/2003.13461"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import make_update
from fedlab_runner.algorithms.shared.personal import Personal, PersonalState, PersonalUpdate
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.joined_models import Pair
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.utils.validate import within


@dataclass(frozen=True)
class APFL(Personal):
    """FedAvg, whose clients also learn a model v of their own and use the mixture alpha v + (1 - alpha) w.

    In a local step w follows its own gradient. On the same minibatch v follows the gradient of the mixture's loss by v,
    which is alpha times the gradient at the mixture. With `adaptive` each client has an alpha of its own, which begins
    at `alpha`. At the beginning of a round it moves by -lr <v - w, grad f(mixture)> on the round's first minibatch,
    within [0, 1].

    A client's own model mixes v with the present server model. It has the batch norm statistics of the mixture.
    """

    alpha: float
    adaptive: bool

    model_copies: ClassVar[int] = 3  # pairs after training, and v with alpha
    training_copies: ClassVar[int] = 5  # v before, and pairs before and after training
    step_copies: ClassVar[int] = 6  # the second model, its gradient and its parts; the mixture with the same

    def __post_init__(self) -> None:
        within("[0, 1]", alpha=self.alpha)
        super().__post_init__()

    def init(self, fed: Federation) -> PersonalState:
        x = fed.family.init(fed.seed)
        return PersonalState(x, torch.cat([x, x.new_tensor([self.alpha])]), personal={})

    def client_update(self, state: PersonalState, cohort: Cohort) -> PersonalUpdate:
        x = state.params
        own = self.personal(state, cohort)
        v, alpha = own[:, :-1], own[:, -1]
        if self.adaptive:
            alpha = self._moved(cohort, cohort.starts(x), v, alpha)

        pair = cohort.joined(Pair, cohort.family, cohort.family)
        start = pair.join(x.expand(len(cohort), -1), v)
        y, v = pair.part(cohort.train(start, loss=_loss, per_client=(alpha,), joined=pair))
        update = make_update(cohort.family, x, y, self.late_policy)
        return PersonalUpdate(*update, torch.cat([v, alpha.unsqueeze(1)], 1))

    def _moved(self, cohort: Cohort, w: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
        """Each client's next alpha [K], from the models w and v [K, D]."""
        p = cohort.family.num_params
        mixture = torch.cat([torch.lerp(w[:, :p], v[:, :p], alpha.unsqueeze(1)), v[:, p:]], 1)
        g = cohort.alone().gradients(mixture, steps=1)
        return (alpha - cohort.lr * ((v - w)[:, :p] * g).sum(1)).clamp(0, 1)

    def client_models(self, state: PersonalState, fed: Federation, ids: np.ndarray) -> Tensor:
        own, p = super().client_models(state, fed, ids), fed.family.num_params
        v, alpha = own[:, :-1], own[:, -1:]
        mixture = torch.lerp(fed.home.fill(state.params, ids)[:, :p], v[:, :p], alpha)
        return torch.cat([mixture, v[:, p:]], 1)

    def operations(self, fed: Federation, local: float) -> float:
        first = 1 / (fed.local.steps or fed.local.epochs or 1)  # at most: an epoch may have one step
        return local * (2 + self.adaptive * first)


def _loss(model: FunctionalModel, batch: Batch, alpha: Tensor) -> Tensor:
    """The losses of w and of the mixture, for pairs of w and v."""
    w, v = model.params.chunk(2)
    layout = model.family.layout.items()
    second = {name: shape for name, (start, shape) in layout if len(w) <= start < len(model.params)}
    parts = torch.split(torch.lerp(w.detach(), v, alpha), [shape.numel() for shape in second.values()])
    mixture = {name: part.view(shape) for (name, shape), part in zip(second.items(), parts, strict=True)}
    of_w, of_mixture = (batch.mean(losses(z, batch.targets, batch.offsets)) for z in model(batch.inputs, mixture))
    return of_w + (of_mixture - of_mixture.detach())  # the value, which train/loss shows, is that of w
