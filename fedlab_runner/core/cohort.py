"""The clients that start in a round, and their local training."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_state import RowStore
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.rng import Purpose, generators
from fedlab_runner.core.trainer import LocalTrainer
from fedlab_runner.core.work import Correct, Loss, PerStep, Perturb, Work


class ClientStreams(NamedTuple):
    """Random streams for an algorithm's use: one for each client at each of its local steps."""

    seed: int
    round: int
    ids: np.ndarray  # [K]

    def __call__(self, rows: np.ndarray, step: int) -> Iterator[np.random.Generator]:
        """The streams of some rows of the cohort [k], in turn, at one of their local steps."""
        return generators(self.seed, Purpose.ALGORITHM, self.round, self.ids[rows], step)


class Cohort:
    """The clients that start now, programmed as if they were one client; all train models of one family."""

    def __init__(
        self,
        trainer: LocalTrainer,
        family: ModelFamily,
        local: LocalTraining,
        ids: np.ndarray,
        due: np.ndarray,
        round: int,
        lr: float,
    ) -> None:
        self._trainer, self.family, self.client_ids, self.due = trainer, family, ids, due
        client_data, device = trainer.client_data, family.device
        self._num_steps = client_data.num_steps(ids, local, family.has_batch_norm)
        self.ids = torch.from_numpy(ids).to(device)  # [K]
        self.num_examples = torch.from_numpy(client_data.num_examples[ids]).to(device)  # [K]
        self.num_steps = torch.from_numpy(self._num_steps).to(device)  # [K]
        self.round, self.local, self.lr = round, local, lr
        # After training: each client's mean minibatch loss over its last local epoch [K].
        self.last_loss: Tensor | None = None
        # After training, if clients report it (`Federation.report_losses`): [K] float64.
        self.final_loss: Tensor | None = None

    def __len__(self) -> int:
        return len(self.client_ids)

    def row_store(self, place: str, length: int) -> RowStore:
        """As `Federation.row_store`."""
        return self._trainer.client_state.rows(place, length, self.family.dtype)

    @property
    def label_counts(self) -> Tensor:
        """How many examples of each class each client has [K, C] int64."""
        return self._trainer.client_data.label_counts(self.client_ids, self.family.num_classes)

    @property
    def steps_per_epoch(self) -> np.ndarray:
        """Local steps of each client in one epoch [K]."""
        return self._trainer.client_data.steps_per_epoch(self.client_ids, self.local, self.family.has_batch_norm)

    @property
    def streams(self) -> ClientStreams:
        """Random streams for the algorithm's use."""
        return ClientStreams(self._trainer.seed, self.round, self.client_ids)

    def select(self, rows: np.ndarray) -> "Cohort":
        """Some of the clients, by indices [k]."""
        return self._with(self.local, rows)

    def _with(self, local: LocalTraining, rows: np.ndarray | slice = slice(None)) -> "Cohort":
        ids, due = self.client_ids[rows], self.due[rows]
        return Cohort(self._trainer, self.family, local, ids, due, self.round, self.lr)

    def gradients(self, x: Tensor) -> Tensor:
        """The gradient at x [D] of each client's mean loss over its examples [K, P]: one pass over them, without weight
        decay or clipping.
        """
        p, client_data = self.family.num_params, self._trainer.client_data

        def loss(model: FunctionalModel, batch: Batch, share: Tensor) -> Tensor:
            """A minibatch's part of the mean, at x wherever the parameters are."""
            model.params = x[:p] + (model.params - model.params.detach())
            return self.family.loss(model, batch) * batch.mask.sum() * share

        local = self.local.one_plain_epoch()
        once = self._with(local)
        seen = client_data.examples_seen(self.client_ids, local, self.family.has_batch_norm)
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
        work = Work(
            family=self.family,
            client_data=self._trainer.client_data,
            ids=self.client_ids,
            num_steps=self._num_steps,
            local=self.local,
            lr=self.lr,
            seed=self._trainer.seed,
            round=self.round,
            start=start,
            loss=loss,
            perturb=perturb,
            correct=correct,
            per_client=per_client,
            per_step=per_step,
        )
        y, self.last_loss, self.final_loss = self._trainer.train(work, counted=counted)
        return y
