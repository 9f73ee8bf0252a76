"""The local work of a cohort, as every executor receives it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_data import ClientData, Plan
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.rng import torch_seeds

Loss = Callable[..., Tensor]  # loss(model, batch, *own) -> scalar, written for one client
Perturb = Callable[..., Tensor]  # perturb(gradient [P], *own) -> [P], written for one client
Correct = Callable[..., Tensor]  # correct(gradient [P], *own) -> [P], written for one client
OfOne = Callable[..., tuple[Tensor, ...]]
Objective = Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]]
Gradient = Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]]
MOST_PLANNED = 2**20  # examples of a cohort's minibatches that are worked out at once
PerStep = Callable[[np.ndarray, int], tuple[Tensor, ...]]  # (rows [k], step) -> tensors [k, ...]


@dataclass(frozen=True)
class Work:
    """K clients, each training from its start: a function of these fields alone."""

    family: ModelFamily
    client_data: ClientData
    ids: np.ndarray  # [K]
    num_steps: np.ndarray  # [K]
    local: LocalTraining
    lr: float
    seed: int
    round: int
    start: Tensor  # [D], the same for all, or [K, D]
    loss: Loss | None = None
    perturb: Perturb | None = None
    correct: Correct | None = None
    per_client: tuple[Tensor, ...] = ()  # each [K, ...]
    per_step: PerStep | None = None

    def select(self, rows: np.ndarray) -> "Work":
        """The work of some of the clients [k]."""
        per_step = self.per_step
        return replace(
            self,
            ids=self.ids[rows],
            num_steps=self.num_steps[rows],
            start=self.start if self.start.dim() == 1 else self.start[rows],
            per_client=tuple(t[rows] for t in self.per_client),
            per_step=None if per_step is None else lambda some, step: per_step(rows[some], step),
        )

    def plan(self, rows: np.ndarray) -> Plan:
        """The minibatches of some of the clients."""
        if self.whole_plan is None:
            return self._plan(self.ids[rows])
        indices, sizes, last_epoch = self.whole_plan
        steps = int(self.num_steps[rows].max(initial=0))
        picked = indices[int(rows[0])].unsqueeze(0) if len(rows) == 1 else indices[torch.from_numpy(rows)]
        return Plan(picked[:, :steps], sizes[rows, :steps], last_epoch[rows])

    @cached_property
    def notes(self) -> dict[Any, Any]:
        """What an executor has worked out for the whole cohort."""
        return {}

    @cached_property
    def whole_plan(self) -> Plan | None:
        """Of the whole cohort, where it is small: to ask for clients one by one costs several times as much."""
        size = len(self.ids) * int(self.num_steps.max(initial=0)) * self.local.batch_size
        return self._plan(self.ids) if size <= MOST_PLANNED else None

    def _plan(self, ids: np.ndarray) -> Plan:
        return self.client_data.plan(
            ids, self.local, seed=self.seed, round=self.round, drop_single=self.family.has_batch_norm
        )

    def start_of(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Fresh copies of the models that some of the clients start from: parameters [k, P] and buffers [k, B]."""
        start = self.start.expand(len(rows), -1) if self.start.dim() == 1 else self.start[rows]
        return start[:, : self.family.num_params].clone(), start[:, self.family.num_params :].clone()

    def groups(self) -> list[tuple[bool, np.ndarray]]:
        """Rows that train in one mode, longest work first: (batch norm frozen, rows).

        A client with a single example cannot train batch norm, so it uses the stored statistics.
        """
        examples = self.client_data.num_examples[self.ids]
        order = np.lexsort((np.arange(len(self.ids)), -examples, -self.num_steps))
        frozen = self.family.has_batch_norm & (examples[order] == 1)
        return [(mode, order[frozen == mode]) for mode in (False, True) if (frozen == mode).any()]

    @cached_property
    def offsets(self) -> Tensor | None:
        """What the supervision signal makes of each client's classes [K, C]."""
        offsets = self.client_data.offsets(self.family.loss_function, self.ids, self.family.num_classes)
        return None if offsets is None else offsets.to(self.family.dtype)

    def objective(self) -> Objective:
        """(params, buffers, inputs, targets, mask, *own) -> loss, (its value, updated buffers), for one client."""
        family, loss, supervised = self.family, self.loss or self._plain_loss, self.offsets is not None

        def objective(
            params: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *own: Tensor
        ) -> Any:
            model, offsets = FunctionalModel(family, params, buffers), own[0] if supervised else None
            value = loss(model, Batch(inputs, targets, mask, offsets), *own[supervised:])
            return value, (value.detach(), model.buffers)

        return objective

    def _plain_loss(self, model: FunctionalModel, batch: Batch, *own: Tensor) -> Tensor:
        return self.family.loss(model, batch)

    def followed(self, gradient: Gradient) -> Gradient:
        """What the optimiser follows, given the objective's gradient: taken at the perturbed parameters, clipped,
        corrected. Loss and updated buffers stay those of the parameters themselves.
        """
        perturb, clip, correct, first = self.perturb, self.local.clip_norm, self.correct, int(self.offsets is not None)

        def followed(
            params: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *own: Tensor
        ) -> Any:
            g, aux = gradient(params, buffers, inputs, targets, mask, *own)
            if perturb is not None:
                g, _ = gradient(params + perturb(g, *own[first:]), buffers, inputs, targets, mask, *own)
            if clip is not None:
                g = clip_rows(g, clip)
            return (g if correct is None else correct(g, *own[first:])), aux

        return followed

    def own(self, rows: np.ndarray, step: int) -> tuple[Tensor, ...]:
        """What belongs to some of the clients at one of their local steps, offsets first: tensors [k, ...]."""
        always = self.per_client if self.offsets is None else (self.offsets, *self.per_client)
        fresh = () if self.per_step is None else self.per_step(rows, step)
        return tuple(t[rows] for t in always) + fresh

    @cached_property
    def _torch_seeds(self) -> list[int]:
        return list(torch_seeds(self.seed, self.client_data.streams.dropout, self.round, self.ids))

    def seed_torch(self, row: int) -> None:
        """Seeds what torch draws itself (dropout) for the client of this row and those that train beside it."""
        seed = self._torch_seeds[row]
        if self.family.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every backend: 0.1 ms
        else:
            torch.manual_seed(seed)


class Executor(Protocol):
    """A way to train a cohort."""

    def bind_run(self, folder: Path, rounds: int) -> "Executor":
        """The executor for a run of so many rounds, which may keep notes in its folder."""
        ...

    def max_parallel_clients(self, clients: int) -> int:
        """How many of so many clients are in training at the same time, in the memory of this machine."""
        ...

    def num_processes(self) -> int:
        """Among how many processes other work than local training may be shared."""
        ...

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        """The models after local work [K, D], and each client's mean loss over its last epoch [K]."""
        ...

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        """`function`, written for one model of a task, for each of n: of tensors [n, ...] row by row, results stacked.

        `fill` promises that what one row gives does not depend, to the bit, on how many others there are.
        """
        ...


def one_by_one(function: OfOne, *rows: Tensor) -> list[Tensor]:
    """The results of `function` for each row of tensors [n, ...], stacked [n, ...]."""
    results = [function(*row) for row in zip(*(t.unbind() for t in rows), strict=True)]
    return [torch.stack(column) for column in zip(*results, strict=True)]


@contextmanager
def own_generator(work: Work) -> Iterator[None]:
    """Leaves torch's global generators as they were."""
    with torch.random.fork_rng(devices=[work.family.device] if work.family.device.type == "cuda" else []):
        yield


def clip_rows(g: Tensor, norm: float) -> Tensor:
    """Rows of g [.., P] scaled down to at most this Euclidean norm."""
    lengths: Tensor = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    return g * (norm / lengths.clamp_min(norm))


def proximal(family: ModelFamily, x: Tensor, mu: float) -> Loss:
    """The task's loss plus mu/2 ||w - x||^2 over the trainable parameters; x is [D]."""
    anchor = x[: family.num_params]

    def loss(model: FunctionalModel, batch: Batch) -> Tensor:
        return family.loss(model, batch) + mu / 2 * (model.params - anchor).square().sum()

    return loss
