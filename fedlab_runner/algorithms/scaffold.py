"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1. https://arxiv.org/abs/1910.06378"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import WEIGHTINGS, make_update, stepped
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.client_state import PLACES, RowRef
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, rows_of_each
from fedlab_runner.core.optimizer import SGD
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import above, one_of


class ScaffoldUpload(NamedTuple):
    """The changes of a client's parameters and of its control variate, and its batch norm statistics."""

    delta_y: Tensor  # [K, P]
    delta_c: Tensor  # [K, P]
    statistics: Tensor  # [K, B]


class ScaffoldState(NamedTuple):
    """The server model and all control variates, which start at zero. Without late updates, and with
    `aggregator=mean`, c is the mean of the c_i over all clients, weighted as `weighting` says.
    """

    params: Tensor  # x    [D]
    c: Tensor  # c    [P]
    c_i: dict[int, RowRef]  # c_i, each [P], by client; zero for a client that has never reported


@dataclass(frozen=True)
class SCAFFOLD(ServerAlgorithm[ScaffoldState, ScaffoldUpload]):
    """Clients correct each gradient g by their own and the mean control variate: g - c_i + c.

    With `option` 1 a client's next control variate is its gradient at the server model over all its examples, which
    takes one more pass. With `option` 2 it is the mean gradient of its local steps, computed from the distance that the
    model moved: the local optimiser must be SGD. With momentum, on which the paper is silent, the gradients have the
    weights in this mean that they have in the distance (FedNova's a_i). `weighting` says how clients count in the means
    of the models and of the control variates (uniform: the paper's, size). `server_lr` is the paper's eta_g. Clients
    keep their control variates on the device, the host or disk (`store_on`).
    """

    option: int
    weighting: str
    server_lr: float
    store_on: str

    averages: ClassVar[bool] = True
    model_copies: ClassVar[int] = 3  # c_i, and the changes of both
    payload_copies: ClassVar[int] = 2
    step_copies: ClassVar[int] = 1  # c_i

    def __post_init__(self) -> None:
        one_of((1, 2), option=self.option)
        one_of(WEIGHTINGS, weighting=self.weighting)
        above(0, server_lr=self.server_lr)
        one_of(PLACES, store_on=self.store_on)

    def check(self, fed: Federation) -> None:
        if self.option == 1:
            return
        wanted = "option 2 of algorithm=scaffold computes gradients from the steps of SGD"
        if not isinstance(fed.local.make_optimizer(), SGD):
            raise UserError(f"{wanted}: use local=sgd, or algorithm.option=1")
        if fed.local.update_norm is not None:
            raise UserError(f"{wanted}: set local.update_norm=null, or algorithm.option=1")

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        held = rows_of_each(self.store_on, load, fed.family.num_params)
        return self.holding(held)

    def init(self, fed: Federation) -> ScaffoldState:
        self.check(fed)
        x = fed.family.init(fed.seed)
        c = x.new_zeros(fed.family.num_params)
        return ScaffoldState(x, c, c_i={})

    def broadcast(self, state: ScaffoldState) -> Sequence[Tensor]:
        return state.params, state.c

    def client_update(self, state: ScaffoldState, cohort: Cohort) -> ScaffoldUpload:
        x, c = state.params, state.c
        rows = cohort.row_store(self.store_on, len(c))
        c_i = rows.stacked(state.c_i, cohort.client_ids.tolist(), torch.zeros_like(c))
        y = cohort.train(x, correct=_corrected, per_client=(c_i,), common=(c,))  # line 10
        delta_y, statistics = make_update(cohort.family, x, y, "delta")
        if self.option == 1:
            delta_c = cohort.gradients(x).sub_(c_i)  # line 12, (i): c_plus - c_i
        elif cohort.lr == 0:  # models do not move: the control variates stay
            delta_c = torch.zeros_like(delta_y)
        else:
            delta_c, minus_c, steps = torch.empty_like(delta_y), -c, cohort.num_steps.tolist()
            optimizer = cohort.local.make_optimizer()
            assert isinstance(optimizer, SGD)
            moved = optimizer.distances(max(steps, default=0))  # K; with momentum more
            for out, delta, count in zip(delta_c, delta_y, steps, strict=True):
                torch.sub(minus_c, delta, alpha=1 / (moved[count] * cohort.lr), out=out)  # (ii)
        delta_c[~cohort.finite] = 0  # under `nonfinite=zero` or clip a model that was not finite tells nothing
        return ScaffoldUpload(delta_y, delta_c, statistics)

    def server_step(self, state: ScaffoldState, arrivals: Updates[ScaffoldUpload], fed: Federation) -> ScaffoldState:
        if not len(arrivals):
            return state
        delta_y, delta_c, statistics = arrivals.upload
        uniform = self.weighting == "uniform"
        step = self.server_lr * arrivals.mean(delta_y, uniform=uniform)
        x = stepped(state.params, step, arrivals.mean(statistics, uniform=uniform))  # line 17
        if uniform:
            c = state.c + arrivals.sum(delta_c) / fed.population
        else:
            everyone = int(fed.client_data.num_examples[fed.participants].sum())
            share = int(arrivals.num_examples.sum()) / everyone  # of all examples
            c = state.c + share * arrivals.mean(delta_c)
        rows, c_i = fed.row_store(self.store_on, len(c)), dict(state.c_i)
        for i, delta in zip(arrivals.ids.tolist(), delta_c, strict=True):
            rows.add(c_i, i, delta)
        return ScaffoldState(x, c, c_i)

    def operations(self, fed: Federation, local: float) -> float:
        # Passes over a client's examples, in addition to training.
        passes = 0.0 if self.option == 2 else 1 / (fed.local.epochs or 1)
        return local * (1 + passes)

    def cached(self, state: ScaffoldState) -> int:
        return state.c.numel()  # the clients keep their c_i


def _corrected(g: Tensor, c_i: Tensor, c: Tensor) -> Tensor:
    return (g - c_i).add_(c)
