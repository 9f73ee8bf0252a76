"""Feddle (Li et al., 2025), Algorithm 1: federated dual learning of hybrid data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.atlas import Atlas, combine, project
from fedlab_runner.algorithms.shared.classifier_head import head_size, named_head, require_body
from fedlab_runner.algorithms.shared.server_training import (
    ADAM,
    check_server_training,
    require_server_data,
    server_batches,
    server_steps,
    training_operations,
)
from fedlab_runner.core.algorithm import CohortLoad, Footprint, MemoryItem, ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import Batch
from fedlab_runner.core.optimizer import zero_slots
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of

FALLBACKS = ("fedbuff", "all", "zero")  # values of the field `fallback`
ANCHOR_PLACES = ("device", "host")  # values of the field `store_on`
QUARTILES = (0.25, 0.5, 0.75)  # of the coefficients, reported as metrics
HEAD, SEARCH, PROBE = 0, 1, 2  # stages of `server_batches`: the uses of the server data in a round


class FeddleUpload(NamedTuple):
    """The change of a client's parameters, and its batch norm statistics as they are."""

    delta: Tensor  # Delta_j [K, P]
    statistics: Tensor  # [K, B]


class FeddleState(NamedTuple):
    """The server model, its atlas and, with out-of-domain data, the classifier of that data's classes."""

    params: Tensor  # omega [D]
    atlas: Atlas
    head: Tensor  # theta [C' (F + 1)] for C' classes and F features; empty in-domain


class Found(NamedTuple):
    """The result of a minimisation, and the losses of its first and last minibatch."""

    value: Tensor
    first_loss: float
    last_loss: float


@dataclass(frozen=True)
class Feddle(ServerAlgorithm[FeddleState, FeddleUpload]):
    """The server keeps the clients' updates as anchors and searches, on its own data, for the coefficients (of either
    sign) with which it adds them to its model.

    The atlas has `atlas_size` M anchors (null: twice the cohort), normalised by `anchor_norm`; a new anchor replaces
    the least important one (`importance_score`) or the oldest. Anchors are kept on the device or the host (`store_on`)
    and streamed in chunks of `chunk_size`.

    The search starts from the `fallback` and is pulled to it by `lam` (null: 0 in-domain, 0.01 out-of-domain). The
    fallback is FedBuff's step with learning rate `eta_fb` over the new arrivals (fedbuff) or the whole atlas (all), or
    no step (zero). Adam searches with `lr`, `epochs`, `batch_size` and `max_steps`; with out-of-domain data it trains
    the data's classifier first, in the same way.

    With probe data the run reports the cosine between the coefficients' gradients on it and on the server's own data,
    at the start and at the end of the search (Eq 7).
    """

    atlas_size: int | None
    anchor_norm: bool
    importance_score: bool
    fallback: str
    eta_fb: float
    lam: float | None
    lr: float
    epochs: int
    batch_size: int
    max_steps: int | None
    store_on: str
    chunk_size: int | None

    def __post_init__(self) -> None:
        at_least(1, atlas_size=self.atlas_size, chunk_size=self.chunk_size)
        one_of(FALLBACKS, fallback=self.fallback)
        at_least(0, eta_fb=self.eta_fb, lam=self.lam)
        one_of(ANCHOR_PLACES, store_on=self.store_on)
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)

    def check(self, fed: Federation) -> None:
        if fed.probe_data is not None and not fed.probe_data.in_domain:
            raise UserError(
                "algorithm=feddle compares gradients on in-domain data: use server_data@probe_data=in_domain or none"
            )
        if not require_server_data(self, fed).in_domain:
            require_body("algorithm=feddle on out-of-domain data", fed.family)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        anchors = self._size(fed) * fed.family.num_params
        held = MemoryItem(anchors, "the atlas", "lower algorithm.atlas_size", self.store_on, copies=2)
        return Footprint(self.model_copies, self.payload_copies, [held])

    def _size(self, fed: Federation) -> int:
        return self.atlas_size or 2 * fed.cohort_size

    def init(self, fed: Federation) -> FeddleState:
        self.check(fed)
        data, x = require_server_data(self, fed), fed.family.init(fed.seed)
        like = x[: fed.family.num_params]
        layer = None if data.in_domain else fed.family.classifier
        size = 0 if layer is None else head_size(layer, data.num_classes)
        return FeddleState(x, Atlas.empty(like.to("cpu") if self.store_on == "host" else like), x.new_zeros(size))

    def client_update(self, state: FeddleState, cohort: Cohort) -> FeddleUpload:
        x, p = state.params, cohort.family.num_params
        y = cohort.train(x)
        return FeddleUpload(y[:, :p] - x[:p], y[:, p:])

    def server_step(self, state: FeddleState, arrivals: Updates[FeddleUpload], fed: Federation) -> FeddleState:
        family, data = fed.family, require_server_data(self, fed)
        x, buffers = state.params[: family.num_params], state.params[family.num_params :]
        atlas = state.atlas.add(  # line 9
            arrivals.upload.delta,
            arrivals.ids.tolist(),
            (fed.round - arrivals.staleness).tolist(),
            size=self._size(fed),
            by_score=self.importance_score,
            device=torch.device("cpu") if self.store_on == "host" else family.device,
        )
        if not len(atlas.anchors):
            return state
        if len(arrivals):
            buffers = arrivals.upload.statistics.mean(0)
        scales = atlas.scales(self.anchor_norm).to(family.device)  # line 22, Eq 4: a_m times its scale
        beyond = self._beyond(fed, atlas, arrivals.upload.delta)
        fallback, share = self._fallback(atlas, scales, len(beyond))  # line 23
        base = x + share * beyond.sum(0) if len(beyond) else x

        def at(c: Tensor) -> Tensor:
            """omega + sum_m c_m a_m [P], normalised a_m."""
            return combine(base, atlas.anchors, c * scales, self.chunk_size)

        head = state.head
        if not data.in_domain:
            head = self._train_head(fed, at(fallback), buffers, head)
        c = self._search(fed, atlas, scales, fallback, at, buffers, head)  # line 24
        omega = at(c)  # line 25, Eq 6
        self._report(fed, c, omega - x, at(fallback) - x)
        if fed.probe_data is not None:
            cosines = (self._agreement(fed, atlas, scales, at(point), buffers, head) for point in (fallback, c))
            fed.metrics.report(**dict(zip(("probe_cosine_first", "probe_cosine_last"), cosines, strict=True)))
        scores = c.abs().to("cpu", torch.float64)  # line 12
        return FeddleState(torch.cat([omega, buffers]), atlas._replace(scores=scores), head)

    def _beyond(self, fed: Federation, atlas: Atlas, deltas: Tensor) -> Tensor:
        """The oldest of the round's updates [A, P], which are part of FedBuff's step but do not fit into the atlas."""
        if self.fallback != "fedbuff" or len(deltas) <= self._size(fed):
            return deltas[:0]
        directions = deltas[deltas.any(1)]
        return directions[: len(directions) - int(atlas.scores.isinf().sum())]

    def _fallback(self, atlas: Atlas, scales: Tensor, beyond: int) -> tuple[Tensor, float]:
        """c' [M], the coefficients with which the normalised anchors give the fallback step; and each update's share.

        `beyond` of the new arrivals are not in the atlas, but part of the step.
        """
        new = atlas.scores.isinf().to(scales.device)
        if self.fallback == "zero" or not bool(new.any()):
            return torch.zeros_like(scales), 0.0
        chosen = new if self.fallback == "fedbuff" else torch.ones_like(new)
        share = self.eta_fb / (int(chosen.sum()) + beyond)
        return share * chosen.to(scales.dtype) / scales, share

    def _search(
        self,
        fed: Federation,
        atlas: Atlas,
        scales: Tensor,
        fallback: Tensor,
        at: Callable[[Tensor], Tensor],
        buffers: Tensor,
        head: Tensor,
    ) -> Tensor:
        """c [M] that minimises the loss on the server's data plus lam/2 |c - c'|^2 (Eq 5, 9 and 10)."""
        family, named = fed.family, named_head(fed.family, head)
        lam = self.lam if self.lam is not None else (0.01 if len(head) else 0.0)
        cost = 4 * atlas.anchors.numel()

        def gradient(c: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            omega = at(c).requires_grad_()  # Eq 15: anchors are outside the graph
            loss = F.cross_entropy(family.evaluate(omega, buffers, batch.inputs, named), batch.targets)
            (g,) = torch.autograd.grad(loss, omega)
            fed.metrics.count_server_flops(len(batch.mask) * family.flops(batch.inputs).step + cost)
            return loss, scales * project(g, atlas.anchors, self.chunk_size) + lam * (c - fallback)  # Eq 16

        found = self._minimise(fed, fallback, gradient, SEARCH)
        fed.metrics.report(search_loss_first=found.first_loss, search_loss_last=found.last_loss)
        return found.value

    def _agreement(
        self, fed: Federation, atlas: Atlas, scales: Tensor, omega: Tensor, buffers: Tensor, head: Tensor
    ) -> float:
        """The cosine between the coefficients' gradients on the probe data and on as many server examples (Eq 7).

        The gradients are without the pull to the fallback.
        """
        family, probe = fed.family, fed.probe_data
        assert probe is not None
        parts = zip(*(torch.split(t, self.batch_size) for t in (probe.inputs, probe.targets)), strict=True)
        mine = server_batches(fed, 1, self.batch_size, -(-len(probe) // self.batch_size), stage=PROBE, training=False)
        theirs = (family.batch(inputs, targets, torch.ones_like(targets)) for inputs, targets in parts)
        directions = []
        for batches, named in ((mine, named_head(family, head)), (theirs, {})):
            total, leaf = torch.zeros_like(omega), omega.detach().requires_grad_()
            for batch in batches:
                logits = family.evaluate(leaf, buffers, batch.inputs, named)
                (g,) = torch.autograd.grad(F.cross_entropy(logits, batch.targets, reduction="sum"), leaf)
                total += g
            directions.append(scales * project(total, atlas.anchors, self.chunk_size))
        one, other = directions
        return float(F.cosine_similarity(one.double(), other.double(), dim=0))

    def _train_head(self, fed: Federation, omega: Tensor, buffers: Tensor, head: Tensor) -> Tensor:
        """theta after training on the features of the fixed body omega (Eq 8)."""
        family = fed.family

        def gradient(theta: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            leaf = theta.detach().requires_grad_()
            logits = family.evaluate(omega, buffers, batch.inputs, named_head(family, leaf))
            loss = F.cross_entropy(logits, batch.targets)
            (g,) = torch.autograd.grad(loss, leaf)
            fed.metrics.count_server_flops(len(batch.mask) * family.flops(batch.inputs).forward)
            return loss, g

        found = self._minimise(fed, head, gradient, HEAD)
        fed.metrics.report(head_loss_first=found.first_loss, head_loss_last=found.last_loss)
        return found.value

    def _minimise(
        self, fed: Federation, start: Tensor, gradient: Callable[[Tensor, Batch], tuple[Tensor, Tensor]], stage: int
    ) -> Found:
        """A fresh Adam over the server's minibatches; `gradient(value, batch)` gives the loss and its gradient."""
        value, slots, losses = start.clone(), zero_slots(ADAM, start), []
        batches = server_batches(fed, self.epochs, self.batch_size, self.max_steps, stage=stage, training=False)
        for t, batch in enumerate(batches):
            loss, g = gradient(value, batch)
            losses.append(loss.detach())
            ADAM.step(value, g, slots, self.lr, t)
        return Found(value, *(float(losses[i]) if losses else 0.0 for i in (0, -1)))

    def _report(self, fed: Federation, c: Tensor, step: Tensor, fallback: Tensor) -> None:
        fed.metrics.report(
            atlas_size=len(c),
            coefficients_negative=float((c < 0).double().mean()),
            coefficients_mean=float(c.mean()),
            coefficients_mean_abs=float(c.abs().mean()),
            coefficients_min=float(c.min()),
            coefficients_max=float(c.max()),
            **{f"coefficients_q{int(100 * q)}": float(c.quantile(q)) for q in QUARTILES},
            fallback_cosine=float(F.cosine_similarity(step.double(), fallback.double(), dim=0)),  # 0: no fallback
        )

    def operations(self, fed: Federation, local: float) -> float:
        steps = server_steps(fed, self.epochs, self.batch_size, self.max_steps)
        search = training_operations(fed, self.epochs, self.batch_size, self.max_steps)
        head = 0.0 if require_server_data(self, fed).in_domain else search / 3  # forward passes
        return local + search + head + 4 * steps * self._size(fed) * fed.family.num_params
