"""The local work of a cohort."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.additions import Correct, Loss, Penalty, PerStep, Perturb
from fedlab_runner.core.client_data import ClientData, Plan
from fedlab_runner.core.global_rng import kept_globals, own_generators, seed_others, seed_torch
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.optimizer import SGD, Masked, Optimizer
from fedlab_runner.core.own_values import Own
from fedlab_runner.core.rng import Purpose, torch_seeds

Objective = Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]]  # see `Work.objective`
Gradient = Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]]  # an objective's gradient [P], with the same second part
MAX_PLANNED_EXAMPLES = 2**20  # of a cohort, up to which the minibatches of all its clients are drawn at once


@dataclass(frozen=True)
class Work:
    """The local training of K clients, whose result is a function of these fields alone; see `Cohort.train`."""

    family: ModelFamily
    client_data: ClientData
    ids: np.ndarray  # [K]
    num_steps: np.ndarray  # [K], 0 for a client without examples
    local: LocalTraining
    lr: float  # of this round, with the schedule's factor
    seed: int
    round: int  # counted from 0
    start: Tensor  # [D], the same for all clients, or [K, D]
    loss: Loss | None = None  # None: the family's
    penalty: Penalty | None = None  # that is added to the loss
    perturb: Perturb | None = None
    correct: Correct | None = None
    per_client: tuple[Tensor, ...] = ()  # each [K, ...]
    per_step: PerStep | None = None
    common: tuple[Tensor, ...] = ()  # the same for all clients
    frozen: tuple[str, ...] = ()  # parameters and statistics that stay as they are
    optimizer: Optimizer | None = None  # None: that of `local`
    own_start: Own | None = None  # each client's own values, which replace those of `start`

    def select(self, rows: np.ndarray) -> "Work":
        """The work of some of the clients, by their rows [k]."""
        return replace(
            self,
            ids=self.ids[rows],
            num_steps=self.num_steps[rows],
            start=self.start if self.start.dim() == 1 else self.start[rows],
            per_client=tuple(t[rows] for t in self.per_client),
            own_start=None if self.own_start is None else self.own_start.select(rows),
        )

    def plan(self, rows: np.ndarray) -> Plan:
        """The minibatches of some of the clients, by their rows [k]."""
        if self.whole_plan is None:
            return self.drawn_plan(self.ids[rows])
        indices, sizes, last_epoch = self.whole_plan
        steps = int(self.num_steps[rows].max(initial=0))
        picked = indices[int(rows[0])].unsqueeze(0) if len(rows) == 1 else indices[torch.from_numpy(rows)]
        return Plan(picked[:, :steps], sizes[rows, :steps], last_epoch[rows])

    @cached_property
    def notes(self) -> dict[Any, Any]:
        """What executors and `per_step` keep as long as this work exists."""
        return {}

    @cached_property
    def whole_plan(self) -> Plan | None:
        """The minibatches of the whole cohort, if it is small: drawing client by client takes several times longer."""
        size = len(self.ids) * int(self.num_steps.max(initial=0)) * self.local.batch_size
        return self.drawn_plan(self.ids) if size <= MAX_PLANNED_EXAMPLES else None

    def drawn_plan(self, ids: np.ndarray, purpose: Purpose | None = None) -> Plan:
        """The minibatches of clients `ids` [k]; with a `purpose`, others than those that they train on."""
        how: dict[str, Any] = {"seed": self.seed, "round": self.round, "drop_single": self.family.has_batch_norm}
        return self.client_data.plan(ids, self.local, purpose=purpose, **how)

    def starts(self, rows: np.ndarray | None = None) -> Tensor:
        """The models [k, D] that some of the clients start from (None: all). The caller must not write into them."""
        count = len(self.ids) if rows is None else len(rows)
        if self.own_start is None:
            return (self.start if rows is None or self.start.dim() == 1 else self.start[rows]).expand(count, -1)
        found = self.start.new_empty(count, self.family.size)
        for w, row in zip(found, range(count) if rows is None else rows.tolist(), strict=True):
            self.begin(w, row)
        return found

    def begin(self, w: Tensor, row: int) -> None:
        """Writes the model that one client starts from into w [D]."""
        w.copy_(self.start if self.start.dim() == 1 else self.start[row])
        if self.own_start is not None:
            self.own_start.columns.put(w, self.own_start.rows[row])

    def start_of(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Copies of the models that some of the clients start from: parameters [k, P] and buffers [k, B]."""
        start = self.starts(rows)
        return start[:, : self.family.num_params].clone(), start[:, self.family.num_params :].clone()

    def groups(self) -> list[tuple[bool, np.ndarray]]:
        """Pairs (whether batch norm is frozen, the rows that train so), with the longest work first.

        Batch norm cannot train on one example: a client with a single example uses the stored statistics.
        """
        examples = self.client_data.num_examples[self.ids]
        order = np.lexsort((np.arange(len(self.ids)), -examples, -self.num_steps))
        frozen = self.family.has_batch_norm & (examples[order] == 1)
        return [(mode, order[frozen == mode]) for mode in (False, True) if (frozen == mode).any()]

    @cached_property
    def offsets(self) -> Tensor | None:
        """The loss function's offsets for each client [K, C]; None: the loss function has no offsets."""
        offsets = self.client_data.offsets(self.family.loss_function, self.ids, self.family.num_classes)
        return None if offsets is None else offsets.to(self.family.dtype)

    @cached_property
    def _frozen(self) -> Tensor:
        """The mask [D] of the frozen values."""
        parts = [torch.full((shape.numel(),), name in self.frozen) for name, (_, shape) in self.family.layout.items()]
        return torch.cat(parts).to(self.family.device)

    @cached_property
    def _made_optimizer(self) -> Optimizer:
        made, p = self.optimizer or self.local.make_optimizer(), self.family.num_params
        alone = self.penalty is None and self.correct is None
        still = alone and isinstance(made, SGD) and not made.weight_decay  # a zero gradient moves nothing
        return Masked(made, ~self._frozen[:p]) if self.frozen and not still else made

    @property
    def moving(self) -> list[bool]:
        """For each trainable tensor whether it moves."""
        family = self.family
        return [name not in self.frozen for name, (start, _) in family.layout.items() if start < family.num_params]

    def make_optimizer(self) -> Optimizer:
        """The optimiser of this local training."""
        return self._made_optimizer

    def restored(self, y: Tensor) -> Tensor:
        """Trained models y [K, D] with the frozen statistics that they started with."""
        if not self.frozen or not bool(self._frozen[self.family.num_params :].any()):
            return y
        return torch.where(self._frozen, self.starts(), y)

    def objective(self, *, penalized: bool = True) -> Objective:
        """One client's objective: (params, buffers, inputs, targets, mask, *own) -> loss, (its value, new buffers)."""
        family, loss, has_offsets = self.family, self.loss or own_loss, self.offsets is not None
        frozen, penalty = self.frozen, self.penalty if penalized else None

        def objective(
            params: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *own: Tensor
        ) -> Any:
            model, offsets = FunctionalModel(family, params, buffers, frozen), own[0] if has_offsets else None
            value = loss(model, Batch(inputs, targets, mask, offsets), *own[has_offsets:])
            if penalty is not None:
                value = value + penalty(params, *own[has_offsets:])
            return value, (value.detach(), model.buffers)

        return objective

    def gradient(self, of: Callable[[Objective], Gradient]) -> Gradient:
        """`of(objective)`. If the penalty has its gradient by hand, that of the rest and the penalty's are added."""
        penalty = self.penalty
        if penalty is None or (pull := getattr(penalty, "gradient", None)) is None:
            return of(self.objective())
        of_rest, first = of(self.objective(penalized=False)), int(self.offsets is not None)

        def gradient(params: Tensor, *batch: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            g, (loss, buffers) = of_rest(params, *batch)
            own = batch[4 + first :]  # behind buffers, inputs, targets and mask
            return g.add_(pull(params, *own)), (loss + penalty(params, *own), buffers)

        return gradient

    def followed(self, gradient: Gradient, each: Callable[..., Any] = lambda of_one: of_one) -> Gradient:
        """The gradient that the optimiser follows: taken at the perturbed parameters, then clipped, then corrected.

        Loss and new buffers stay those of the parameters themselves. `each` adapts a function for one client to the
        arguments of `gradient`: `vmap` adapts it to rows of several clients.
        """
        perturb, correct = (None if of_one is None else each(of_one) for of_one in (self.perturb, self.correct))
        clip, first = self.local.clip_norm, int(self.offsets is not None)
        models = self.family.models

        def followed(
            params: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *own: Tensor
        ) -> Any:
            g, aux = gradient(params, buffers, inputs, targets, mask, *own)
            if perturb is not None:
                g, _ = gradient(params + perturb(g, *own[first:]), buffers, inputs, targets, mask, *own)
            if clip is not None:
                g = torch.cat([clip_rows(part, clip) for part in torch.split(g, models, -1)], -1)
            return (g if correct is None else correct(g, *own[first:])), aux

        return followed

    def own(self, rows: np.ndarray, step: int) -> tuple[Tensor, ...]:
        """The tensors [k, ...] of some of the clients at one local step, with the offsets first, without `common`."""
        always = self.per_client if self.offsets is None else (self.offsets, *self.per_client)
        fresh = () if self.per_step is None else self.per_step(self, rows, step)
        viewed = len(rows) == 1 or bool((rows == np.arange(len(rows))).all())  # one row, or the first ones
        at = slice(int(rows[0]), int(rows[0]) + len(rows)) if viewed and len(rows) else rows
        return tuple(t[at] for t in always) + fresh

    @cached_property
    def _torch_seeds(self) -> list[int]:
        return list(torch_seeds(self.seed, self.client_data.streams.dropout, self.round, self.ids))

    def seed_globals(self, row: int) -> None:
        """Seeds torch's global generator (dropout) for the client of this row and those that train in the same call. A
        function that an algorithm adds may draw from numpy's and Python's too.
        """
        seed_torch(self.family.device, self._torch_seeds[row])
        if self._adds:
            seed_others(self._torch_seeds[row])

    def kept_globals(self) -> AbstractContextManager[None]:
        """A context after which all generators that `seed_globals` seeds are as they were."""
        return (kept_globals if self._adds else own_generators)(self.family.device)

    @property
    def _adds(self) -> bool:
        """Whether an algorithm adds functions to the steps."""
        added = (self.loss, self.penalty, self.perturb, self.correct, self.per_step)
        return any(each is not None for each in added)


def own_loss(model: FunctionalModel, batch: Batch, *own: Tensor) -> Tensor:
    """The loss of the model's family."""
    return model.family.loss(model, batch)


def gradient_of(objective: Objective) -> Gradient:
    """The gradient of an objective by its parameters, with the objective's second result, by plain autograd.

    For a vmapped objective of several clients it gives the gradient of each row, as no loss depends on another client's
    parameters. This takes half the time of `vmap(torch.func.grad(..))` for a small MLP, and imports no compiler, which
    would take a second.
    """

    def gradient(params: Tensor, *rest: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        leaf = params.detach().requires_grad_()
        value, (loss, buffers) = objective(leaf, *rest)
        # A loss of frozen parameters alone has no gradient.
        (g,) = torch.autograd.grad(value.sum(), leaf) if value.requires_grad else (torch.zeros_like(leaf),)
        return g, (loss, buffers.detach())

    return gradient


def clip_rows(g: Tensor, norm: float) -> Tensor:
    """Scales rows of g [.., P] down to at most the Euclidean norm `norm`."""
    clipped: Tensor = g * (norm / torch.linalg.vector_norm(g, dim=-1, keepdim=True).clamp_min(norm))
    return clipped
