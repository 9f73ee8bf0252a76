"""GAMF (Liu et al., ICML 2022): deep neural network fusion via graph matching.
https://proceedings.mlr.press/v162/liu22k.html
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.matching.graduated_assignment import Graduated, check_graduated
from fedlab_runner.algorithms.matching.neurons import permute
from fedlab_runner.algorithms.matching.structure import require_groups
from fedlab_runner.algorithms.shared.averaging import (
    MODEL_POLICIES,
    Models,
    Params,
    all_discarded,
    check_averaging,
    in_time,
)
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, MemoryItem
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.updates import Updates

# Values in memory at once: for each weight of a layer that is compared, for each value of a model that is compared, for
# each value of the assignments of all layers, and for each value of those that are solved, in float64.
POWERS, MOVED, ASSIGNMENTS, SOLVED = 3, 2, 3, 6


@dataclass(frozen=True)
class GAMF(ServerAlgorithm[Params, Models]):
    """The server model is the mean of the clients' models after graph matching has put their neurons into the first
    model's order.

    The server matches all models and layers at once, or each model with the first alone (`pairwise`). Soft assignments
    start at temperature `tau`. Whenever they have converged, `tau_decay` multiplies the temperature, down to `tau_min`.
    At most `max_iterations` of `sinkhorn_steps` steps follow each other (see `matching.graduated_assignment`). In
    residual networks the server matches the channels inside the blocks, in Transformers the hidden neurons between
    attention layers. `late_policy` says whether the server matches and averages late models with the others (model) or
    drops them (discard). `weighting` (uniform, size) says how clients count.
    """

    tau: float
    tau_decay: float
    tau_min: float
    sinkhorn_steps: int
    max_iterations: int
    pairwise: bool
    late_policy: str
    weighting: str

    def __post_init__(self) -> None:
        check_graduated(self.tau, self.tau_decay, self.tau_min, self.sinkhorn_steps, self.max_iterations)
        check_averaging(self.late_policy, self.weighting, server_lr=1.0, policies=MODEL_POLICIES)

    def check(self, fed: Federation) -> None:
        require_groups(self, fed)

    def home_fault(self) -> str | None:
        return "which moves neurons to new places, so that the parts at home would no longer fit them"

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        groups, model = require_groups(self, fed), torch.empty(fed.family.size, device="meta")
        squares = [group.size**2 for group in groups]
        kernels = 1 if self.pairwise else -(-load.arriving // 2)  # of a model: with the first, or with all before it
        weights = max(max(g.incoming(model).numel(), g.outgoing(model).numel()) for g in groups)
        largest = max(POWERS * weights, MOVED * fed.family.size, SOLVED * max(squares))  # one after another
        values = largest + (kernels + ASSIGNMENTS) * sum(squares)
        of_all, fewer = load.arriving * values, "lower participation.cohort_size or take a narrower model"
        return self.holding([MemoryItem(of_all, "comparing their neurons", fewer, merging=True, saved=False)])

    def init(self, fed: Federation) -> Params:
        self.check(fed)
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> Models:
        return Models(cohort.train(state.params))

    def server_step(self, state: Params, arrivals: Updates[Models], fed: Federation) -> Params:
        arrivals = in_time(arrivals, self.late_policy)
        if not len(arrivals):
            return state
        return Params(arrivals.mean(self._aligned(arrivals.upload.models, fed), uniform=self.weighting == "uniform"))

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving, "take model, or ")

    def _aligned(self, models: Tensor, fed: Federation) -> Tensor:
        """Models [A, D] with their neurons in the order of the first."""
        groups = require_groups(self, fed)
        search = Graduated(
            self.tau, self.tau_decay, self.tau_min, self.sinkhorn_steps, self.max_iterations, self.pairwise
        )
        found = search.assign(models, groups, generator(fed.seed, Purpose.ALGORITHM, fed.round))
        fed.metrics.count_server_flops(found.flops)
        moved = 0
        for group, orders in zip(groups, found.orders, strict=True):
            models = torch.stack([permute(y, group, order) for y, order in zip(models, orders, strict=True)])
            moved += sum(int((order != range(group.size)).sum()) for order in orders)
        neurons = len(models) * sum(group.size for group in groups)
        fed.metrics.report(moved_neurons=moved / neurons, iterations=found.iterations)
        return models
