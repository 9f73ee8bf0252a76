"""FedMA (Wang et al., ICLR 2020), with a fixed width. https://arxiv.org/abs/2002.06440"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.matching.neurons import NeuronGroup, permute
from fedlab_runner.algorithms.matching.pfnm import PFNM, Neurons, match
from fedlab_runner.algorithms.matching.structure import require_groups
from fedlab_runner.algorithms.shared.averaging import MODEL_POLICIES, Models, all_discarded, check_averaging, in_time
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import FEWER, CohortLoad, Footprint, MemoryItem
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of, unused

FIRST_MODELS = ("same", "own")  # values of the field `first_models`
SWEEPS = 5  # where the field is null
COMPARED = 3  # rows of a layer that the matching holds besides the clients': the server's sums, and parts of the gain


class FedMAState(NamedTuple):
    """The server model, and which clients continue with models of their own instead: with their first models
    (`first_models`) or, with `layerwise`, with their last models.
    """

    params: Tensor  # x [D]
    # The next three are for `layerwise` only.
    layer: int  # the layer to be matched next
    told: int  # neurons of the layer matched last, whose new order each client receives
    frozen: Tensor  # [D] bool, the layers matched in this pass
    models: dict[int, Tensor]  # each [D], of the clients in the last matching, matched layers in the server's order
    taken: Tensor  # [N] bool, the clients that continue with their own models: new ones, or those of the last matching


@dataclass(frozen=True)
class FedMA(ServerAlgorithm[FedMAState, Models]):
    """The server model is the mean of the clients' models after PFNM has matched their neurons, in up to `sweeps`
    sweeps over the clients.

    The width is fixed: the server matches neurons one to one and adds no new neurons. So all clients have all neurons,
    and PFNM's prior, deviations and gamma play no part: they add the same to every assignment. In residual networks the
    server matches the channels inside the blocks, in Transformers the hidden neurons between attention layers (see
    `matching.structure`).

    With `layerwise` each round matches one layer, as in the paper (Algorithm 1), and the last layer is the weighted
    mean. A pass takes as many rounds as the model has layers; then the next pass begins from the server model (section
    3.3). Matched layers are frozen. Above them, a client that took part in the last round continues with its own
    layers, in the server's order; other clients take the server's layers, which are weighted means until their turn. A
    late update would be of another layer, so `late_policy` must be discard. Clients send the whole model; the paper's
    clients send one layer.

    Clients that start a round from one model keep its neurons in their places, and the identity is the best matching.
    With `first_models` own each client starts its first round from a model drawn by its own key, so that the matching
    has to find its neurons; with `layerwise` only clients do that start before a layer is frozen. With `matched` false
    the server averages the models as they are, for comparison.

    `late_policy` says whether the server matches and averages late models with the others (model) or drops them
    (discard). `weighting` (size, uniform) says how clients count.
    """

    sweeps: int | None
    layerwise: bool
    first_models: str
    matched: bool
    late_policy: str
    weighting: str

    model_copies: ClassVar[int] = 2  # y, and the same in order

    def __post_init__(self) -> None:
        at_least(0, sweeps=self.sweeps)
        one_of(FIRST_MODELS, first_models=self.first_models)
        if self.layerwise and not self.matched:
            raise ValueError("matched must be true with layerwise true, got false")
        if not self.matched:
            unused("matched=false", sweeps=self.sweeps)
        check_averaging(self.late_policy, self.weighting, server_lr=1.0, policies=MODEL_POLICIES)
        if self.layerwise and self.late_policy != "discard":
            raise ValueError(f"late_policy must be discard with layerwise true, got {self.late_policy}")

    def check(self, fed: Federation) -> None:
        groups = require_groups(self, fed)
        if self.layerwise and not _is_chain(fed, groups):
            raise UserError(
                "algorithm=fedma with layerwise=true needs a chain of layers with neurons of their own up to the "
                f"classifier (mlp, cnn_small, cnn_mcmahan, ...), which this {type(fed.family.module).__name__} is not: "
                "set algorithm.layerwise=false"
            )
        if self._keeps_models and fed.server_steps.optimized:
            raise UserError(
                "server_optimizer must be none with algorithm=fedma where layerwise=true or first_models=own: its "
                "moments would not follow when the server model's neurons move"
            )

    def home_fault(self) -> str | None:
        return "which moves neurons to new places, so that the parts at home would no longer fit them"

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        held: list[MemoryItem] = []
        if self.layerwise:
            kept = load.starting * fed.family.size
            held = [MemoryItem(kept, "the models in the last matching", "set algorithm.layerwise=false")]
        if self.matched:
            model = torch.empty(fed.family.size, device="meta")
            largest = max(group.incoming(model).numel() for group in require_groups(self, fed))
            values = (load.arriving + COMPARED) * largest
            held.append(MemoryItem(values, "comparing their neurons", FEWER, merging=True, saved=False))
        found = self.holding(held)
        return found._replace(training_copies=1 + self._keeps_models)  # starts of their own, and the trained models

    @property
    def _keeps_models(self) -> bool:
        return self.layerwise or self.first_models == "own"

    def init(self, fed: Federation) -> FedMAState:
        self.check(fed)
        x, own = fed.family.init(fed.seed), self.first_models == "own"
        taken = x.new_full((fed.num_clients if self._keeps_models else 0,), own, dtype=torch.bool)
        return FedMAState(x, 0, 0, torch.zeros_like(x, dtype=torch.bool), {}, taken)

    def broadcast(self, state: FedMAState) -> Sequence[Tensor]:
        return state.params, state.params.new_empty(state.told)

    def client_update(self, state: FedMAState, cohort: Cohort) -> Models:
        x, frozen, p = state.params, state.frozen, cohort.family.num_params
        if not self._keeps_models:
            return Models(cohort.train(x))
        taken, start = state.taken[cohort.ids].tolist(), x.repeat(len(cohort), 1)
        for row, client, own in zip(start, cohort.client_ids.tolist(), taken, strict=True):
            if own:
                first = cohort.family.init
                mine = state.models[client] if client in state.models else first(cohort.streams.seed, 1 + client)
                row.copy_(torch.where(frozen, x, mine))
        if not self.layerwise:
            return Models(cohort.train(start))
        return Models(torch.where(frozen, x, cohort.train(start, loss=_loss, common=(frozen[:p], x[:p]))))

    def server_step(self, state: FedMAState, arrivals: Updates[Models], fed: Federation) -> FedMAState:
        if self._keeps_models and not self.layerwise:
            state = state._replace(taken=state.taken.index_fill(0, arrivals.ids, False))  # they have started
        arrivals = in_time(arrivals, self.late_policy)
        if not len(arrivals):
            return state
        groups = require_groups(self, fed)
        chosen = groups[state.layer : state.layer + 1] if self.layerwise else groups if self.matched else []
        aligned, moved = self._aligned(arrivals, chosen, fed)
        x = torch.where(state.frozen, state.params, arrivals.mean(aligned, uniform=self.weighting == "uniform"))
        fed.metrics.report(moved_neurons=moved, **({"layer": state.layer} if self.layerwise else {}))
        if not self.layerwise:
            return state._replace(params=x)
        if not chosen:  # the last layer: the pass is over
            return FedMAState(x, 0, 0, state.frozen & False, {}, state.taken & False)
        taken = torch.zeros_like(state.taken).index_fill_(0, arrivals.ids, True)
        models = dict(zip(arrivals.ids.tolist(), aligned.unbind(), strict=True))
        return FedMAState(x, state.layer + 1, chosen[0].size, state.frozen | chosen[0].own(x), models, taken)

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving, "" if self.layerwise else "take model, or ")

    def _aligned(
        self, arrivals: Updates[Models], groups: Sequence[NeuronGroup], fed: Federation
    ) -> tuple[Tensor, float]:
        """The arrived models [A, D] in the neuron order of the largest client, and the share of neurons that moved.

        Layer after layer: the inputs of a layer must be in order before its neurons are compared.
        """
        models = arrivals.upload.models.clone()
        order = torch.argsort(arrivals.num_examples, descending=True, stable=True).tolist()  # largest first
        moved = total = 0
        for layer, group in enumerate(groups):
            rows = group.incoming(models)
            columns = torch.arange(rows.shape[-1], device=rows.device)
            prior = PFNM(sigma=1.0, sigma0=1.0, gamma=1.0, mu0=torch.zeros_like(rows[0, 0]))
            matching = match(
                [Neurons(rows[j], columns, 1.0) for j in order],
                prior,
                num_columns=len(columns),
                sweeps=SWEEPS if self.sweeps is None else self.sweeps,
                rng=generator(fed.seed, Purpose.ALGORITHM, fed.round, layer),
                limit=group.size,
            )
            fed.metrics.count_server_flops(matching.flops)
            inverse = [np.argsort(a) for a in matching.assignments]
            back = np.argsort(order)
            for y, k in zip(models, back, strict=True):
                y.copy_(permute(y, group, inverse[k]))
            moved += sum(int((a != np.arange(group.size)).sum()) for a in matching.assignments)
            total += len(models) * group.size
        return models, moved / max(total, 1)

    def cached(self, state: FedMAState) -> int:
        return 0  # the clients keep their own models


def _is_chain(fed: Federation, groups: Sequence[NeuronGroup]) -> bool:
    """Whether all parameters except the classifier's belong to a group's neurons."""
    last = fed.family.classifier
    if last is None:
        return False
    x = fed.family.vector(fed.family.module)
    owned = torch.stack([group.own(x) for group in groups]).any(0)
    return torch.equal(~owned, fed.family.segments(last.name))


def _loss(model: FunctionalModel, batch: Batch, frozen: Tensor, x: Tensor) -> Tensor:
    """The family's loss with the frozen layers at the server's values, whatever the optimiser does to them."""
    model.params = torch.where(frozen, x, model.params)
    return model.family.loss(model, batch)
