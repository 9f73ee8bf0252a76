"""pFedMe (T. Dinh, Tran and Nguyen, NeurIPS 2020), Algorithm 1. https://arxiv.org/abs/2006.08848"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import make_update
from fedlab_runner.algorithms.shared.inner_gradients import along, gradient
from fedlab_runner.algorithms.shared.personal import Personal, PersonalState, PersonalUpdate
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.joined_models import Carrying
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.utils.validate import above, at_least


@dataclass(frozen=True)
class _Envelope:
    """The loss of models that carry theta in their buffers. The fields are those of PFedMe."""

    lam: float
    inner_steps: int
    inner_lr: float
    warm_start: bool

    def __call__(self, model: FunctionalModel, batch: Batch) -> Tensor:
        w, p = model.params.detach(), len(model.params)
        theta = model.buffers[-p:] if self.warm_start else w
        for _ in range(self.inner_steps):
            g, value, model.buffers = gradient(model, theta, batch)
            # theta - inner_lr (g + lam (theta - w)), in two passes over the parameters
            theta = torch.lerp(theta, w, self.inner_lr * self.lam).sub_(g, alpha=self.inner_lr)
        model.buffers = torch.cat([model.buffers[:-p], theta])
        return along(model, self.lam * (w - theta), value)


@dataclass(frozen=True)
class PFedMe(Personal):
    """FedAvg on the Moreau envelopes of the clients' losses, F_i(w) = min over theta of f_i(theta) +
    lam/2 ||theta - w||^2. The gradient of F_i is lam (w - theta).

    In a local step a client searches for theta by `inner_steps` (K) steps of plain gradient descent with `inner_lr`,
    all on one minibatch. Then w follows lam (w - theta) by the local optimiser. With `warm_start` the search continues
    from the last step's theta; otherwise it begins at w each time. A client's own model is its last theta. `server_lr`
    (beta) scales the server's step. Batch norm's statistics are those of the passes for theta.
    """

    lam: float
    inner_steps: int
    inner_lr: float
    warm_start: bool

    model_copies: ClassVar[int] = 4  # w and theta after training, the update, and the kept theta
    step_copies: ClassVar[int] = 5  # theta, its gradient and the parts of it, the penalty's and the sum

    def __post_init__(self) -> None:
        above(0, lam=self.lam, inner_lr=self.inner_lr)
        at_least(1, inner_steps=self.inner_steps)
        super().__post_init__()

    def client_update(self, state: PersonalState, cohort: Cohort) -> PersonalUpdate:
        x, p = state.params, cohort.family.num_params

        carrying = cohort.joined(Carrying, cohort.family, p)
        start = carrying.join(x.expand(len(cohort), -1), cohort.starts(x)[:, :p])
        loss = _Envelope(self.lam, self.inner_steps, self.inner_lr, self.warm_start)
        y, theta = carrying.part(cohort.train(start, loss=loss, joined=carrying))
        own = torch.cat([theta, y[:, p:]], 1)
        return PersonalUpdate(*make_update(cohort.family, x, y, self.late_policy), own)

    def client_models(self, state: PersonalState, fed: Federation, ids: np.ndarray) -> Tensor:
        """The clients' thetas [k, D], with the statistics that stay at home."""
        own, p = super().client_models(state, fed, ids), fed.family.num_params
        return torch.cat([own[:, :p], fed.home.fill(own, ids)[:, p:]], 1)

    def operations(self, fed: Federation, local: float) -> float:
        return self.inner_steps * local
