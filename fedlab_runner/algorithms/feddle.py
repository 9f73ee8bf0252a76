"""Feddle (Zhu et al., 2025), Algorithm 1: federated dual learning of hybrid data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.atlas import Atlas, AtlasReader, cosine, moving
from fedlab_runner.algorithms.shared.classifier_head import HeadLogits, named_head, require_body, zero_head
from fedlab_runner.algorithms.shared.server_batches import server_batches, server_steps
from fedlab_runner.algorithms.shared.server_gradient import cross_entropy, server_gradient
from fedlab_runner.algorithms.shared.server_training import (
    ADAM,
    check_server_training,
    require_server_data,
    training_operations,
)
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, MemoryItem
from fedlab_runner.core.model_family import Batch
from fedlab_runner.core.optimizer import zero_slots
from fedlab_runner.core.updates import Updates
from fedlab_runner.executors.team import Team, team
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of, unused

FALLBACKS = ("fedbuff", "all", "zero")  # values of the field `fallback`
ANCHOR_PLACES = ("device", "host")  # values of the field `store_on`
QUARTILES = (0.25, 0.5, 0.75)  # of the coefficients, reported as metrics
B = TypeVar("B")
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
    """The result of a minimisation, and the losses on its first and last minibatch."""

    value: Tensor
    first_loss: float
    last_loss: float


class Space(NamedTuple):
    """The models omega(c) = omega + sum_m c_m a_m, with normalised anchors a_m (Eq 6)."""

    base: Tensor  # omega [P]
    scales: Tensor  # that normalise the anchors [M]
    anchors: AtlasReader
    model: Tensor  # the model at the last c, and its statistics [D]
    team: Team

    def at(self, c: Tensor) -> Tensor:
        """Moves the model to c [M], and returns its parameters [P], which the next call moves."""
        return self.anchors.combine(self.base, c * self.scales, self.model[: len(self.base)])

    def coefficients(self, gradient: Tensor) -> Tensor:
        """The gradient by c [M], from the gradient by the parameters [P] (Eq 16)."""
        return self.scales * self.anchors.project(gradient)


@dataclass(frozen=True)
class Feddle(ServerAlgorithm[FeddleState, FeddleUpload]):
    """The server keeps the clients' updates as anchors and adds them to its model by coefficients of either sign, which
    it searches for on its own data.

    The atlas has `atlas_size` M anchors (null: twice the cohort), normalised by `anchor_norm`. In a full atlas a new
    anchor replaces the least important one (`importance_score`) or the oldest. The server keeps anchors on the device
    or the host (`store_on`) and reads them in chunks of `chunk_size`.

    The search starts from the `fallback`; `lam` (null: 0 in-domain, 0.01 out-of-domain) pulls it there. The fallback is
    FedBuff's step with learning rate `eta_fb` (null: 1) over the new arrivals (fedbuff) or the whole atlas (all), or no
    step (zero). Adam searches with `lr`, `epochs`, `batch_size` and `max_steps`. With out-of-domain data it first
    trains a classifier of that data, in the same way.

    With probe data the run reports the cosine between the coefficients' gradients on the probe data and on the server's
    data, at the start and at the end of the search (Eq 7).
    """

    atlas_size: int | None
    anchor_norm: bool
    importance_score: bool
    fallback: str
    eta_fb: float | None
    lam: float | None
    lr: float
    epochs: int
    batch_size: int
    max_steps: int | None
    store_on: str
    chunk_size: int | None

    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(1, atlas_size=self.atlas_size, chunk_size=self.chunk_size)
        one_of(FALLBACKS, fallback=self.fallback)
        at_least(0, eta_fb=self.eta_fb, lam=self.lam)
        unused("fallback=zero", eta_fb=self.eta_fb if self.fallback == "zero" else None)
        one_of(ANCHOR_PLACES, store_on=self.store_on)
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)

    def check(self, fed: Federation) -> None:
        if fed.probe_data is not None and not fed.probe_data.in_domain:
            raise UserError(
                "algorithm=feddle compares gradients on in-domain data: use server_data@probe_data=in_domain or none"
            )
        if not (data := require_server_data(self, fed)).in_domain:
            require_body("algorithm=feddle on out-of-domain data", fed.family, data)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        anchors = self._size(fed) * fed.family.num_params
        held = MemoryItem(anchors, "the atlas", "lower algorithm.atlas_size", self.store_on, anew=anchors)
        items, data, layer = [held], fed.server_data, fed.family.classifier
        if data is not None and not data.in_domain and layer is not None and self._features_kept(fed):
            values, remedy = len(data) * layer.num_features, "lower server_data.max_images or algorithm.epochs"
            items.append(MemoryItem(values, "the features of the server's examples", remedy, anew=values, saved=False))
        return self.holding(items)

    def _size(self, fed: Federation) -> int:
        return self.atlas_size or 2 * fed.cohort_size

    def init(self, fed: Federation) -> FeddleState:
        self.check(fed)
        x, head = fed.family.init(fed.seed), zero_head(fed.family, require_server_data(self, fed))
        like = x[: fed.family.num_params]
        return FeddleState(x, Atlas.empty(like.to("cpu") if self.store_on == "host" else like), head)

    def client_update(self, state: FeddleState, cohort: Cohort) -> FeddleUpload:
        x, p = state.params, cohort.family.num_params
        y = cohort.train(x)
        return FeddleUpload(y[:, :p].sub_(x[:p]), y[:, p:])

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
        with team() as its:
            reader = AtlasReader(atlas.anchors, self.chunk_size, family.device, its)
            space = Space(base, scales, reader, torch.cat([base, buffers]), its)
            first, head = space.at(fallback).clone(), state.head
            if not data.in_domain:
                head = self._train_head(fed, space.model, head)
            c = self._search(fed, space, fallback, head)  # line 24
            omega = space.at(c).clone()  # line 25, Eq 6
            self._report(fed, c, omega - x, first - x)
            if fed.probe_data is not None:
                cosines = (self._agreement(fed, space, point, head) for point in (fallback, c))
                fed.metrics.report(**dict(zip(("probe_cosine_first", "probe_cosine_last"), cosines, strict=True)))
        scores = c.abs().to("cpu", torch.float64)  # line 12
        return FeddleState(torch.cat([omega, buffers]), atlas._replace(scores=scores), head)

    def _beyond(self, fed: Federation, atlas: Atlas, deltas: Tensor) -> Tensor:
        """The oldest of the round's updates [A, P]: they count in FedBuff's step but do not fit into the atlas."""
        if self.fallback != "fedbuff" or len(deltas) <= self._size(fed):
            return deltas[:0]
        directions = deltas[moving(deltas)]
        return directions[: len(directions) - int(atlas.scores.isinf().sum())]

    def _fallback(self, atlas: Atlas, scales: Tensor, beyond: int) -> tuple[Tensor, float]:
        """c' [M], the coefficients with which the normalised anchors give the fallback step; and each update's share.

        `beyond` of the new arrivals count in the step but are not in the atlas.
        """
        new = atlas.scores.isinf().to(scales.device)
        if self.fallback == "zero" or not bool(new.any()):
            return torch.zeros_like(scales), 0.0
        chosen = new if self.fallback == "fedbuff" else torch.ones_like(new)
        share = (1.0 if self.eta_fb is None else self.eta_fb) / (int(chosen.sum()) + beyond)
        return share * chosen.to(scales.dtype) / scales, share

    def _search(self, fed: Federation, space: Space, fallback: Tensor, head: Tensor) -> Tensor:
        """c [M] that minimises the loss on the server's data plus lam/2 |c - c'|^2 (Eq 5, 9 and 10)."""
        family, size = fed.family, fed.family.num_params
        lam = self.lam if self.lam is not None else (0.01 if len(head) else 0.0)
        cost, instead = 4 * len(fallback) * size, named_head(family, head)

        batches = server_batches(fed, self.epochs, self.batch_size, self.max_steps, stage=SEARCH, training=False)
        how: dict[str, Any] = {"steps": len(batches), "training": False, "instead": instead}
        with server_gradient(fed, space.model, space.team, **how) as of_model:

            def gradient(c: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
                space.at(c)  # Eq 15: anchors are outside the graph
                g, loss = of_model(batch, cross_entropy)
                fed.metrics.count_server_flops(len(batch.mask) * family.flops(batch.inputs, instead).step + cost)
                return loss, space.coefficients(g) + lam * (c - fallback)  # Eq 16

            found = self._minimise(fallback, batches, gradient)
        fed.metrics.report(search_loss_first=found.first_loss, search_loss_last=found.last_loss)
        return found.value

    def _agreement(self, fed: Federation, space: Space, c: Tensor, head: Tensor) -> float:
        """The cosine between the coefficients' gradients on the probe data and on as many server examples (Eq 7), at
        the coefficients c [M].

        The gradients are without the pull to the fallback.
        """
        family, probe = fed.family, fed.probe_data
        assert probe is not None
        space.at(c)
        parts = zip(*(torch.split(t, self.batch_size) for t in (probe.inputs, probe.targets)), strict=True)
        mine = server_batches(fed, 1, self.batch_size, -(-len(probe) // self.batch_size), stage=PROBE, training=False)
        theirs = (family.batch(inputs, targets, torch.ones_like(targets)) for inputs, targets in parts)
        directions = []
        for batches, instead in ((mine, named_head(family, head)), (theirs, {})):
            total = torch.zeros_like(space.base)
            with server_gradient(fed, space.model, space.team, training=False, instead=instead) as of_model:
                for batch in batches:
                    total += len(batch.mask) * of_model(batch, cross_entropy)[0]
            directions.append(space.coefficients(total))
        one, other = directions
        return cosine(one, other)

    def _train_head(self, fed: Federation, w: Tensor, head: Tensor) -> Tensor:
        """theta after training on the features of the fixed body w [D] (Eq 8)."""
        family, data = fed.family, require_server_data(self, fed)
        logits = HeadLogits(family, w, data, self.batch_size, self._features_kept(fed))

        def gradient(theta: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            leaf = theta.detach().requires_grad_()
            loss = F.cross_entropy(logits(leaf, index), data.targets[index].to(family.device))
            (g,) = torch.autograd.grad(loss, leaf)
            return loss, g

        settings = self.epochs, self.batch_size, self.max_steps
        batches = server_batches(fed, *settings, stage=HEAD, training=False)
        found = self._minimise(head, batches.indices(), gradient)
        fed.metrics.count_server_flops(logits.operations)
        fed.metrics.report(head_loss_first=found.first_loss, head_loss_last=found.last_loss)
        return found.value

    def _features_kept(self, fed: Federation) -> bool:
        """Whether the head learns from features that the server computes once: if it sees an example more than once."""
        seen = server_steps(fed, self.epochs, self.batch_size, self.max_steps) * self.batch_size
        return seen > len(require_server_data(self, fed))

    def _minimise(
        self, start: Tensor, batches: Iterable[B], gradient: Callable[[Tensor, B], tuple[Tensor, Tensor]]
    ) -> Found:
        """A fresh Adam over minibatches; `gradient(value, batch)` gives the loss and its gradient."""
        value, slots, losses = start.clone(), zero_slots(ADAM, start), []
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
            fallback_cosine=cosine(step, fallback),  # 0: no fallback
        )

    def operations(self, fed: Federation, local: float) -> float:
        settings, data = (self.epochs, self.batch_size, self.max_steps), require_server_data(self, fed)
        own = named_head(fed.family, zero_head(fed.family, data))
        steps, search = server_steps(fed, *settings), training_operations(fed, *settings, own)
        head = search / 3 if own else 0.0  # forward passes
        return local + search + head + 4 * steps * self._size(fed) * fed.family.num_params
