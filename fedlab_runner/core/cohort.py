"""The clients that start in a round, and their local training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_losses import client_losses
from fedlab_runner.core.client_state import Rows
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.memory_check import check_memory
from fedlab_runner.core.model_family import Batch, Model, Task
from fedlab_runner.core.rng import Purpose, generators
from fedlab_runner.core.work import Correct, Loss, PerStep, Perturb, Work
from fedlab_runner.utils import attempt

if TYPE_CHECKING:
    from fedlab_runner.core.federation import Federation


class Cohort:
    """The clients that start now, programmed as if they were one client; all train models of one family."""

    def __init__(
        self,
        fed: "Federation",
        ids: np.ndarray,
        due: np.ndarray,
        task: Task | None = None,
        local: LocalTraining | None = None,
    ) -> None:
        self._fed, self.task, self.client_ids, self.due = fed, task or fed.task, ids, due
        self._seed = fed.seed
        self._num_steps = fed.population.num_steps(ids, local or fed.local, self.task.has_batch_norm)
        device = fed.task.device
        self.ids = torch.from_numpy(ids).to(device)  # [K]
        self.num_examples = torch.from_numpy(fed.population.num_examples[ids]).to(device)  # [K]
        self.num_steps = torch.from_numpy(self._num_steps).to(device)  # [K]
        self.round, self.local, self.lr = fed.round, local or fed.local, fed.lr
        self.last_loss: Tensor | None = (
            None  # [K], after training: mean minibatch loss over each client's last local epoch
        )
        self.final_loss: Tensor | None = None  # [K] float64, after training, if clients report it: `report_losses`

    def __len__(self) -> int:
        return len(self.client_ids)

    def __getstate__(self) -> dict[str, Any]:
        """Without the federation: what an algorithm's closures hold may be sent to other machines."""
        return self.__dict__ | {"_fed": None}

    def rows(self, place: str, length: int) -> Rows:
        """As `Federation.rows`."""
        return self._fed.rows(place, length)

    @property
    def label_counts(self) -> Tensor:
        """How many examples of each class each client has [K, C] int64."""
        return self._fed.population.label_counts(self.client_ids, self.task.num_classes)

    @property
    def steps_per_epoch(self) -> np.ndarray:
        """Local steps of each client in one epoch [K]."""
        return self._fed.population.steps_per_epoch(self.client_ids, self.local, self.task.has_batch_norm)

    def streams(self, rows: np.ndarray, step: int) -> Iterator[np.random.Generator]:
        """Random streams for the algorithm's use: of some rows of the cohort, in turn, at one of their local steps."""
        return generators(self._seed, Purpose.ALGORITHM, self.round, self.client_ids[rows], step)

    def select(self, rows: np.ndarray) -> "Cohort":
        """Some of the clients, by indices [k]."""
        return Cohort(self._fed, self.client_ids[rows], self.due[rows], self.task, self.local)

    def gradients(self, x: Tensor) -> Tensor:
        """The gradient at x [D] of each client's mean loss over its examples [K, P]: one pass over them, without weight
        decay or clipping.
        """
        p, fed = self.task.num_params, self._fed

        def loss(model: Model, batch: Batch, share: Tensor) -> Tensor:
            """A minibatch's part of the mean, at x wherever the parameters are."""
            model.params = x[:p] + (model.params - model.params.detach())
            return self.task.loss(model, batch) * batch.mask.sum() * share

        local = self.local.one_plain_epoch()
        once = Cohort(fed, self.client_ids, self.due, self.task, local)
        seen = fed.population.examples_seen(self.client_ids, local, self.task.has_batch_norm)
        start = torch.cat([torch.zeros_like(x[:p]), x[p:]])  # from zero, the distance is the gradient to the last bit
        y = once.train(start, loss=loss, per_client=(1 / torch.from_numpy(seen).to(x),), counted=False)
        return y[:, :p].neg_().div_(self.lr)

    def train(
        self,
        start: Tensor,
        *,
        loss: Loss | None = None,
        perturb: Perturb | None = None,
        correct: Correct | None = None,
        per_client: tuple[Tensor, ...] = (),
        per_step: PerStep | None = None,
        counted: bool = True,
    ) -> Tensor:
        """The clients' models after local training [K, D], from `start` [D] or [K, D].

        `loss(model, batch, *own)` replaces the task's loss; each step's gradient [P] is taken where
        `perturb(gradient, *own)` moves the parameters, on the same minibatch, and changed by
        `correct(gradient, *own)`. All are written for one client: what they close over is shared, what is passed in
        `per_client` (tensors [K, ...]) is split by client, and `per_step(rows, step)` adds to it what some rows of the
        cohort [k] have at one local step (tensors [k, ...]). Unless it is `counted`, the loss is no part of train/loss:
        for a second training of the round, on another objective.
        """
        fed = self._fed
        work = Work(
            task=self.task,
            population=fed.population,
            ids=self.client_ids,
            num_steps=self._num_steps,
            local=self.local,
            lr=self.lr,
            seed=fed.seed,
            round=fed.round,
            start=start,
            loss=loss,
            perturb=perturb,
            correct=correct,
            per_client=per_client,
            per_step=per_step,
        )
        check_memory(work)
        fed.count_client_flops(work)
        attempt.at("local training", fed.round + 1)
        y, self.last_loss = fed.executor.train(work)
        attempt.at("algorithm")
        y, good = fed.guard.trained(self.client_ids, start, y, self.last_loss, self.task, self.local.update_norm)
        sizes, losses = self.num_examples[good], self.last_loss[good]
        if counted and (total := int(sizes.sum())):
            fed.record_loss(float(losses @ sizes.to(y.dtype) / total), total)
        if fed.losses_reported and counted:
            self.final_loss = client_losses(self.task, fed.population, self.client_ids, y)
        return y
