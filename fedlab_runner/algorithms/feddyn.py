"""FedDyn (Acar et al., ICLR 2021), Algorithm 1. https://arxiv.org/abs/2111.04263"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Update, make_update, stepped
from fedlab_runner.core.additions import Proximal
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.client_state import PLACES, RowRef
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, rows_of_each
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import above, one_of


class FedDynState(NamedTuple):
    """The server's model, and estimates of the gradients of the clients' losses, which start at zero."""

    params: Tensor  # theta [D]
    h: Tensor  # h [P], with aggregator=mean the mean of g_k over all clients
    g_k: dict[int, RowRef]  # the gradient of L_k at theta_k, each [P], by client; zero before its first report


@dataclass(frozen=True)
class _Dynamic:
    """The terms -<g, w> and alpha/2 ||w - x||^2 of a client's loss."""

    near: Proximal

    def __call__(self, w: Tensor, g: Tensor, *anchor: Tensor) -> Tensor:
        return self.near(w, *anchor) - g @ w

    def gradient(self, w: Tensor, g: Tensor, *anchor: Tensor) -> Tensor:
        return self.near.gradient(w, *anchor).sub_(g)


@dataclass(frozen=True)
class FedDyn(ServerAlgorithm[FedDynState, Update]):
    """Clients minimise L_k(w) - <g_k, w> + alpha/2 ||w - x||^2, where x is the received model. Then g_k becomes
    g_k - alpha (w - x). The server's model is the mean of the clients' models minus h / alpha, where h is the mean of
    all clients' g_k.

    Clients count alike. The server adds a late change to its present model; h and g_k move when the change arrives.
    Clients keep their g_k on the device, the host or disk (`store_on`).
    """

    alpha: float
    store_on: str

    averages: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # the update is written over the trained model
    step_copies: ClassVar[int] = 3  # g_k, in the order of the chunk too, and the penalty's gradient

    def __post_init__(self) -> None:
        above(0, alpha=self.alpha)
        one_of(PLACES, store_on=self.store_on)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        held = rows_of_each(self.store_on, load, fed.family.num_params)
        return self.holding(held)

    def init(self, fed: Federation) -> FedDynState:
        x = fed.family.init(fed.seed)
        return FedDynState(x, x.new_zeros(fed.family.num_params), g_k={})

    def client_update(self, state: FedDynState, cohort: Cohort) -> Update:
        x, p = state.params, cohort.family.num_params
        rows = cohort.row_store(self.store_on, p)
        g_k = rows.stacked(state.g_k, cohort.client_ids.tolist(), x.new_zeros(p))
        y = cohort.train(x, penalty=_Dynamic(Proximal(self.alpha)), per_client=(g_k,), common=cohort.near(x))
        return make_update(cohort.family, x, y, "delta")

    def server_step(self, state: FedDynState, arrivals: Updates[Update], fed: Federation) -> FedDynState:
        if not len(arrivals):
            return state
        deltas, statistics = arrivals.upload
        rows, g_k = fed.row_store(self.store_on, len(state.h)), dict(state.g_k)
        for k, delta in zip(arrivals.ids.tolist(), deltas, strict=True):
            rows.add(g_k, k, delta, -self.alpha)
        mean = arrivals.mean(deltas, uniform=True)
        h = state.h - self.alpha * len(arrivals) / fed.population * mean
        step = mean - h / self.alpha
        return FedDynState(stepped(state.params, step, arrivals.mean(statistics, uniform=True)), h, g_k)

    def cached(self, state: FedDynState) -> int:
        return state.h.numel()  # the clients keep their g_k
