"""The clients that start in a round, and their local training."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.additions import Correct, Loss, Penalty, PerStep, Perturb
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.client_homes import ClientHomes
from fedlab_runner.core.client_losses import client_losses
from fedlab_runner.core.client_state import RowStore
from fedlab_runner.core.gradient_pass import gradient_pass
from fedlab_runner.core.joined_models import Joined
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.optimizer import Optimizer
from fedlab_runner.core.rng import Purpose, generators
from fedlab_runner.core.trainer import J, LocalTrainer
from fedlab_runner.core.work import Work
from fedlab_runner.core.work_checks import check_given, check_start


class ClientStreams(NamedTuple):
    """Random streams for an algorithm: a stream for each client at each of its local steps."""

    seed: int
    round: int
    ids: np.ndarray  # [K]

    def __call__(self, rows: np.ndarray, step: int) -> Iterator[np.random.Generator]:
        """The streams of some rows of the cohort [k], in turn, at one local step."""
        return generators(self.seed, Purpose.ALGORITHM, self.round, self.ids[rows], step)


class Cohort:
    """The K clients that start now, in an interface as for one client. All train models of one family."""

    def __init__(
        self,
        trainer: LocalTrainer,
        family: ModelFamily,
        local: LocalTraining,
        ids: np.ndarray,
        due: np.ndarray,
        round: int,
        lr: float,
        homes: ClientHomes | None = None,
        client_data: ClientData | None = None,
    ) -> None:
        """With `homes` the clients keep a part of their models to themselves. They train on `client_data` (None: that
        of the trainer).
        """
        self._homes = homes
        self._trainer, self.family, self.client_ids, self.due = trainer, family, ids, due
        self.client_data = client_data = client_data or trainer.client_data  # the examples that the clients train on
        device = family.device
        self._num_steps = client_data.num_steps(ids, local, family.has_batch_norm)
        self.ids = torch.from_numpy(ids).to(device)  # [K]
        self.num_examples = torch.from_numpy(client_data.num_examples[ids]).to(device)  # [K]
        self.num_steps = torch.from_numpy(self._num_steps).to(device)  # [K]
        self.round, self.local, self.lr = round, local, lr
        # After `train`: each client's mean minibatch loss over its last local epoch [K].
        self.last_loss: Tensor | None = None
        # After `train` where clients report it (`Federation.report_losses`): the trained model's loss [K] float64.
        self.final_loss: Tensor | None = None
        # The mask [K] of the clients of whom every model and gradient was finite so far.
        self.finite = torch.ones(len(ids), dtype=torch.bool, device=device)

    def __len__(self) -> int:
        return len(self.client_ids)

    def row_store(self, place: str, length: int) -> RowStore:
        """The store of an algorithm's rows [length], as in `Federation.row_store`. Their stacks are in memory that the
        executor need not copy.
        """
        return self._trainer.client_state.rows(place, length, self.family.dtype, self._trainer.executor.empty)

    @property
    def label_counts(self) -> Tensor:
        """How many examples of each class each client has [K, C] int64."""
        return self.client_data.label_counts(self.client_ids, self.family.num_classes)

    @property
    def streams(self) -> ClientStreams:
        """The algorithm's random streams in this round."""
        return ClientStreams(self._trainer.seed, self.round, self.client_ids)

    def select(self, rows: np.ndarray) -> "Cohort":
        """The cohort of some of the clients, by their rows [k]."""
        return self._with(self.local, rows)

    def parts(self, size: int) -> Iterator["Cohort"]:
        """The cohort in parts of `size` clients, one at least."""
        for begin in range(0, max(1, len(self)), size):
            yield self.select(np.arange(begin, min(begin + size, len(self))))

    def joined(self, kind: Callable[..., J], *parts: Any) -> J:
        """The joined models `kind(*parts)` (`core.joined_models`), the same object in each round."""
        return self._trainer.joined(kind, *parts)

    def starts(self, x: Tensor) -> Tensor:
        """The models [K, D] from which clients that receive x [D] start: the values at home are their own."""
        return x.expand(len(self), -1) if self._homes is None else self._homes.starts(x, self.client_ids)

    def alone(self) -> "Cohort":
        """The same clients for training models that they never send. Their values at home play no part."""
        return self._with(self.local, homes=False)

    @property
    def shared(self) -> Tensor | None:
        """1 for a trainable parameter that clients share, 0 for one that stays at home [P]; None: they share all."""
        return None if self._homes is None else self._homes.shared(self.family)

    @property
    def at_home(self) -> tuple[str, ...]:
        """The names of the parameters and statistics that stay at home."""
        return () if self._homes is None else self._homes.names(self.family)

    def again(self, local: LocalTraining, share: float = 1.0) -> "Cohort":
        """The cohort for a second training in the same round, with minibatches of its own. With a `share` below 1 it
        trains on floor(share n) of each client's n examples, but at least one, drawn for this round.
        """
        data = self._trainer.personal_data
        if share < 1:
            data = data.drawn(self.client_ids, share, self.streams(np.arange(len(self)), 0))
        return self._with(local, data=data)

    def _with(
        self,
        local: LocalTraining,
        rows: np.ndarray | slice = slice(None),
        *,
        homes: bool = True,
        data: ClientData | None = None,
    ) -> "Cohort":
        ids, due, its = self.client_ids[rows], self.due[rows], self._homes if homes else None
        return Cohort(self._trainer, self.family, local, ids, due, self.round, self.lr, its, data or self.client_data)

    def near(self, x: Tensor) -> tuple[Tensor, ...]:
        """The tensors for `common` that the penalty `Proximal` around x [D] needs, over the parameters that clients
        share.
        """
        anchor = x[: self.family.num_params]
        return (anchor,) if self.shared is None else (anchor, self.shared)

    def gradients(self, x: Tensor, steps: int | None = None) -> Tensor:
        """Each client's gradient at x [D] or [K, D] of its mean loss over its examples [K, P], or over those in its
        first `steps` minibatches; without weight decay or clipping.

        The pass over these examples counts as local training in cost/client_gflops. Values at home are those from
        before the round, and their gradient is zero. Raises UserError for another shape.
        """
        check_start("gradients: x", x, self.family, len(self))
        at = x if self._homes is None else self._homes.received(x, self.client_ids)
        client_data, seed = self.client_data, self._trainer.seed
        work = gradient_pass(self.family, client_data, self.client_ids, self.local, seed, self.round, at, steps)
        y, _, _, finite = self._trainer.train(work, counted=False)
        self.finite &= finite
        g = y[:, : self.family.num_params].neg_()
        return g if self.shared is None else g.mul_(self.shared)

    def losses(self, x: Tensor) -> Tensor:
        """Each client's mean cross entropy [K] float64 over all its examples, in evaluation mode, of the model from
        which it starts if it receives x [D]. Counts in cost/client_gflops. Must be asked for before `train`.
        """
        trainer, family, client_data, ids = self._trainer, self.family, self.client_data, self.client_ids
        trainer.metrics.count_client_losses(family, client_data, ids)
        return client_losses(family, client_data, ids, x if self._homes is None else self.starts(x))

    def train(
        self,
        start: Tensor,
        *,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
        perturb: Perturb | None = None,
        correct: Correct | None = None,
        per_client: tuple[Tensor, ...] = (),
        per_step: PerStep | None = None,
        common: tuple[Tensor, ...] = (),
        frozen: tuple[str, ...] = (),
        optimizer: Optimizer | None = None,
        joined: Joined | None = None,
        counted: bool = True,
    ) -> Tensor:
        """The clients' models after local training [K, D], from `start` [D] or [K, D].

        - `loss(model, batch, *own)` replaces the model family's loss: a scalar, by `batch.mean`.
        - `penalty(parameters, *own)` is added to it: a sum over the parameters, or over those of one tensor.
        - `perturb(gradient, *own)` [P] moves the parameters for a second gradient on the same minibatch; the optimiser
          follows this one.
        - `correct(gradient, *own)` changes the gradient that the optimiser follows, each value by itself. The executor
          calls it, like the penalty, with the values of all parameters [P] or with those of one tensor.
        - `per_client`: tensors [K, ...]; the four functions receive each client's row as `own`.
        - `per_step(work, rows, step)`: tensors [k, ...] for some clients at one local step, appended to `own`.
        - `common`: tensors that are the same for all clients, appended to `own`.
        - `frozen`: names of parameters and statistics that stay as they are; no step computes their gradients.
        - `optimizer` replaces that of `local`, with the same learning rate.
        - `joined`: `start` [K, D + E] has joined models; the clients share the first model of each.
        - `counted=False` keeps the loss out of train/loss, for a second training on another objective in one round.

        The functions are written for one client and read nothing but their arguments (`core.additions`). Raises
        UserError for tensors of other shapes or names that the model lacks, where the memory cannot hold the cohort and
        where a function breaks this contract in its trial (`core.additions_trial`), Diverged where `nonfinite=stop`
        ends the run.
        """
        work = Work(
            family=self.family if joined is None else joined.family,
            client_data=self.client_data,
            ids=self.client_ids,
            num_steps=self._num_steps,
            local=self.local,
            lr=self.lr,
            seed=self._trainer.seed,
            round=self.round,
            start=start,
            loss=loss,
            penalty=penalty,
            perturb=perturb,
            correct=correct,
            per_client=per_client,
            per_step=per_step,
            common=common,
            frozen=frozen,
            optimizer=optimizer,
        )
        check_given(work)
        y, self.last_loss, self.final_loss, finite = self._trainer.train(
            work, counted=counted, homes=self._homes, joined=joined, late=self.due > self.round
        )
        self.finite &= finite
        return y
