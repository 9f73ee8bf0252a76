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
from fedlab_runner.algorithms.shared.averaging import MODEL_POLICIES, Models, check_averaging, in_time
from fedlab_runner.core.algorithm import CohortLoad, Footprint, ServerAlgorithm, own_models
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.errors import UserError

FIRST_MODELS = ("same", "own")


class FedMAState(NamedTuple):
    """The server's model, and what clients go on with instead of it, which they keep themselves: their first models
    (`first_models`), and layer by layer their last ones.
    """

    params: Tensor  # x [D]
    layer: int  # which is matched next; this and the next two for `layerwise` only
    told: int  # neurons of the layer matched last, whose new order is told to each client
    frozen: Tensor  # [D] bool, the layers matched in this pass
    models: Tensor  # [N, D], each client's own model, layer by layer in the server's order; [0, D] where none is kept
    taken: Tensor  # [N] bool, who goes on with it: has not begun, or took part in the matching of the layer before


@dataclass(frozen=True)
class FedMA(ServerAlgorithm[FedMAState, Models]):
    """The server's model is the mean of the clients' models after their neurons were matched by PFNM: `sigma`, `sigma0`
    and the prior means `mu0` of weights and `mu0_bias` of biases, `sweeps` over the clients.

    The width is fixed, so that nothing is added to a model and a model is always one vector: every layer's neurons are
    matched one to one, and the gain from new neurons (gamma) has no part. Of residual networks the channels inside the
    blocks are matched, of Transformers the hidden neurons between attention layers (see `matching.structure`).

    With `layerwise` the layers are matched one after the other as in the paper (Algorithm 1), one in a round and the
    last layer by the weighted mean, so that a pass over a network takes as many rounds as it has layers; then the next
    pass begins from the server's model (section 3.3). Layers matched already are frozen. Clients go on with the layers
    above, brought into the server's order, if they took part in the round before; others take the server's, where they
    are the weighted mean until their turn. Here too the width is fixed, and updates that come late are of another
    layer: `late_policy` must be discard. Clients send the whole model, of which the paper sends the layer at hand.

    Clients that begin a round with one model still have its neurons in their places, and the identity is the best
    matching. With `first_models` own each client begins its first round from a model drawn by its own key instead of
    the server's, and its neurons have to be found. `matched` false takes the mean as the models are, to compare with.

    `late_policy` says whether late models are matched and averaged with the others (model) or dropped (discard), and
    `weighting` (size, uniform) how clients count.
    """

    sigma: float
    sigma0: float
    mu0: float
    mu0_bias: float
    sweeps: int
    layerwise: bool
    first_models: str
    matched: bool
    late_policy: str
    weighting: str

    model_copies: ClassVar[int] = 4  # y, and the models before and after a layer is put in order

    def __post_init__(self) -> None:
        for name in ("sigma", "sigma0"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.sweeps < 0:
            raise ValueError(f"sweeps must be >= 0, got {self.sweeps}")
        if self.first_models not in FIRST_MODELS:
            raise ValueError(f"first_models must be one of {', '.join(FIRST_MODELS)}, got {self.first_models}")
        if self.layerwise and not self.matched:
            raise ValueError("matched must be true with layerwise true, got false")
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

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        return Footprint(self.model_copies, self.payload_copies, own_models(fed, 1) if self._keeps_models else [])

    @property
    def _keeps_models(self) -> bool:
        return self.layerwise or self.first_models == "own"

    def init(self, fed: Federation) -> FedMAState:
        self.check(fed)
        x, own = fed.family.init(fed.seed), self.first_models == "own"
        n = fed.num_clients if self._keeps_models else 0
        models = x.expand(n, -1).clone()
        for client in range(n if own else 0):
            models[client] = fed.family.init(fed.seed, 1 + client)
        return FedMAState(
            x, 0, 0, torch.zeros_like(x, dtype=torch.bool), models, models.new_full((n,), own, dtype=torch.bool)
        )

    def broadcast(self, state: FedMAState) -> Sequence[Tensor]:
        return state.params, state.params.new_empty(state.told)

    def client_update(self, state: FedMAState, cohort: Cohort) -> Models:
        x, frozen, family = state.params, state.frozen, cohort.family
        if not self._keeps_models:
            return Models(cohort.train(x))
        own = state.taken[cohort.ids].unsqueeze(1) & ~frozen
        start, p = torch.where(own, state.models[cohort.ids], x), family.num_params
        if not self.layerwise:
            return Models(cohort.train(start))

        def loss(model: FunctionalModel, batch: Batch) -> Tensor:
            """The task's, with the layers below held still, whatever the optimiser does to them."""
            model.params = torch.where(frozen[:p], x[:p], model.params)
            return family.loss(model, batch)

        return Models(torch.where(frozen, x, cohort.train(start, loss=loss)))

    def server_step(self, state: FedMAState, arrivals: Updates[Models], fed: Federation) -> FedMAState:
        if self._keeps_models and not self.layerwise:
            state = state._replace(taken=state.taken.index_fill(0, arrivals.ids, False))  # they have begun
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
            return FedMAState(x, 0, 0, state.frozen & False, state.models, state.taken & False)
        taken = torch.zeros_like(state.taken).index_fill_(0, arrivals.ids, True)
        models = state.models.index_copy(0, arrivals.ids, aligned)
        return FedMAState(x, state.layer + 1, chosen[0].size, state.frozen | chosen[0].own(x), models, taken)

    def _aligned(
        self, arrivals: Updates[Models], groups: Sequence[NeuronGroup], fed: Federation
    ) -> tuple[Tensor, float]:
        """The arrived models [A, D] in one order, that of the largest client, and the share of neurons that moved.

        Layer after layer, since what a layer reads has to be in order before it is compared.
        """
        models = arrivals.upload.models
        order = torch.argsort(arrivals.num_examples, descending=True, stable=True).tolist()  # largest first
        moved = total = 0
        for layer, group in enumerate(groups):
            rows = group.incoming(models)
            columns = torch.arange(rows.shape[-1], device=rows.device)
            prior = PFNM(self.sigma, self.sigma0, gamma=1.0, mu0=self._prior_mean(group, rows))
            matching = match(
                [Neurons(rows[j], columns, 1.0) for j in order],
                prior,
                num_columns=len(columns),
                sweeps=self.sweeps,
                rng=generator(fed.seed, Purpose.ALGORITHM, fed.round, layer),
                limit=group.size,
            )
            fed.metrics.count_server_flops(matching.flops)
            inverse = [np.argsort(a) for a in matching.assignments]
            back = np.argsort(order)
            models = torch.stack([permute(y, group, inverse[k]) for y, k in zip(models, back, strict=True)])
            moved += sum(int((a != np.arange(group.size)).sum()) for a in matching.assignments)
            total += len(models) * group.size
        return models, moved / max(total, 1)

    def _prior_mean(self, group: NeuronGroup, rows: Tensor) -> Tensor:
        """[r]: `mu0_bias` for what the names call a bias, `mu0` for the rest."""
        return torch.cat(
            [
                rows.new_full((p.outer * p.inner,), self.mu0_bias if p.name.endswith("bias") else self.mu0)
                for p in group.rows
            ]
        )

    def models(self, state: FedMAState) -> Tensor:
        return state.params

    def cached(self, state: FedMAState) -> int:
        return 0  # the clients keep their own


def _is_chain(fed: Federation, groups: Sequence[NeuronGroup]) -> bool:
    """Whether all parameters but the classifier's belong to a group's neurons."""
    last = fed.family.classifier
    if last is None:
        return False
    x = fed.family.vector(fed.family.module)
    owned = torch.stack([group.own(x) for group in groups]).any(0)
    return torch.equal(~owned, fed.family.segments(last.name))
