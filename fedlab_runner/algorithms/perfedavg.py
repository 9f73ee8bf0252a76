"""Per-FedAvg (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020), Algorithm 1. https://arxiv.org/abs/2002.07948"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Params, Update, make_update
from fedlab_runner.algorithms.shared.averaging_server import AveragingServer
from fedlab_runner.algorithms.shared.inner_gradients import along, gradient
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.gradient_pass import gradient_pass
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.rng import Purpose
from fedlab_runner.core.work import Work
from fedlab_runner.utils.validate import above, at_least, one_of, unused

VARIANTS = ("first_order", "hessian_free")  # values of the field `variant`
DELTA = 1e-3  # of hessian_free, where the field is null


@dataclass(frozen=True)
class _AfterStep:
    """A loss whose gradient is the gradient of f after a step along the gradient on a second minibatch. A third
    minibatch gives the Hessian's part, which is subtracted.
    """

    inner_lr: float
    delta: float

    def __call__(self, model: FunctionalModel, batch: Batch, *drawn: Tensor) -> Tensor:
        n, w = len(batch.targets), model.params
        others = [batch._replace(inputs=x[:n], targets=y[:n]) for x, y in zip(drawn[::2], drawn[1::2], strict=True)]
        there = w - self.inner_lr * gradient(model, w, others[0]).g  # w_tilde
        g, value, statistics = gradient(model, there, batch)
        if len(others) > 1:
            ahead, behind = (gradient(model, w + s * self.delta * g, others[1]).g for s in (1, -1))
            g = g - self.inner_lr * (ahead - behind) / (2 * self.delta)
        model.buffers = statistics
        return along(model, g, value)


@dataclass(frozen=True)
class _Minibatches:
    """For each purpose one more minibatch of every client at every local step: inputs [k, b, ...] and targets [k, b].
    It has as many examples as the step's own minibatch; the rest is padding.
    """

    purposes: tuple[Purpose, ...]

    def __call__(self, work: Work, rows: np.ndarray, step: int) -> tuple[Tensor, ...]:
        family, client_data, places = work.family, work.client_data, torch.from_numpy(rows).to(work.family.device)
        if self not in work.notes:
            work.notes[self] = [work.drawn_plan(work.ids, purpose).indices for purpose in self.purposes]
        one, found = len(rows) == 1, list[Tensor]()
        for indices in work.notes[self]:
            index = indices[places, step]
            x, y = client_data.minibatch(index[0] if one else index)  # one client's images get their layout
            found += (t[None] if one else t for t in (family.normalize(x, family.dtype), y))
        return tuple(found)


@dataclass(frozen=True)
class PerFedAvg(AveragingServer):
    """FedAvg on the clients' losses after one gradient step: min over w of the mean of f_i(w - inner_lr grad f_i(w)).

    In a local step a client draws minibatches D, D' and D''. With `variant` first_order the local optimiser follows
    g' = grad f(w - inner_lr grad f(w, D), D'). hessian_free subtracts from g' inner_lr times the product of the Hessian
    on D'' at w and g', which is [grad f(w + delta g', D'') - grad f(w - delta g', D'')] / (2 delta), with `delta`
    (null: 1e-3). Batch norm's statistics are those of the pass for g'. A client's own model is the server's model after
    a step of `inner_lr` along the gradient over all its training examples.

    The other fields are those of FedAvg.
    """

    inner_lr: float
    variant: str
    delta: float | None

    step_copies: ClassVar[int] = 1  # the model after the inner step

    def __post_init__(self) -> None:
        at_least(0, inner_lr=self.inner_lr)
        one_of(VARIANTS, variant=self.variant)
        above(0, delta=self.delta)
        if not self._with_hessian:
            unused(f"variant={self.variant}", delta=self.delta)
        super().__post_init__()

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        purposes = (Purpose.INNER_BATCHES, Purpose.HESSIAN_BATCHES)[: 1 + self._with_hessian]
        y = cohort.train(
            state.params, loss=_AfterStep(self.inner_lr, self.delta or DELTA), per_step=_Minibatches(purposes)
        )
        return make_update(cohort.family, state.params, y, self.late_policy)

    def client_models(self, state: Params, fed: Federation, ids: np.ndarray) -> Tensor:
        """The server's model after a step along each client's gradient [k, D], with the statistics of that pass."""
        at, p = fed.home.fill(state.params, ids), fed.family.num_params
        work = gradient_pass(fed.family, fed.client_data, ids, fed.local, fed.seed, fed.round, at)
        y, _ = fed.executor.train(work)
        return torch.cat([at[:, :p] + self.inner_lr * y[:, :p], y[:, p:]], 1)

    def operations(self, fed: Federation, local: float) -> float:
        return local * (4 if self._with_hessian else 2)

    @property
    def _with_hessian(self) -> bool:
        return self.variant == "hessian_free"
