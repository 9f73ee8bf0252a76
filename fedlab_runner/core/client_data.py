"""The clients' examples on the device, and the minibatches that each client's key draws."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.augment.base import Augment
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.losses import LossFunction
from fedlab_runner.core.rng import Purpose, generators
from fedlab_runner.utils.contract import require
from fedlab_runner.utils.rounding import rounded_down


class Plan(NamedTuple):
    """The minibatches of K clients. Client k has `(sizes[k] > 0).sum()` steps; its later entries are padding."""

    indices: Tensor  # [K, T, b] int64 for `ClientData.minibatch`; 0 where padded
    sizes: np.ndarray  # [K, T] int64, real examples in each minibatch
    last_epoch: np.ndarray  # [K] int64, the first step of the last epoch


class Streams(NamedTuple):
    """The random streams that decide minibatches and dropout."""

    batches: Purpose
    dropout: Purpose


CLIENT_STREAMS = Streams(Purpose.BATCHES, Purpose.DROPOUT)  # the random numbers of local training
PERSONAL_STREAMS = Streams(Purpose.PERSONAL_BATCHES, Purpose.PERSONAL_DROPOUT)  # for a second training in a round


class ClientData:
    """The clients' examples: immutable, resident on the device, in their original type (uint8 images stay uint8).

    `augment` changes examples in minibatches (None: not at all). Raises ValueError if it cannot handle their shape.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        split: Sequence[np.ndarray],
        device: torch.device,
        streams: Streams = CLIENT_STREAMS,
        augment: Augment | None = None,
    ) -> None:
        self.inputs, self.targets, self.streams = inputs.to(device), targets.to(device), streams
        self._members = np.concatenate([*split, np.empty(0, np.int64)]).astype(np.int64)
        self.num_examples = np.array([len(part) for part in split], dtype=np.int64)  # [N]
        self._offsets = np.concatenate([[0], np.cumsum(self.num_examples)])
        self.num_clients = len(split)
        self.augment = augment
        self.num_views = 1 if augment is None else augment.num_views(self.inputs.shape[1:])
        self.notes: dict[Any, Any] = {}  # what executors keep as long as these examples
        self.part_of: ClientData | None = None  # those that `part` has taken these from
        self.chosen: Mapping[int, np.ndarray] = {}  # what it took

    def with_streams(self, streams: Streams) -> "ClientData":
        """The same examples, in the same memory, with other random streams."""
        twin = copy(self)
        twin.streams, twin.notes, twin.part_of = streams, {}, None
        return twin

    def drawn(self, ids: np.ndarray, share: float, rngs: Iterable[np.random.Generator]) -> "ClientData":
        """The same memory, in which each client of `ids` [k] has floor(share n) of its n examples, but at least one,
        drawn by its stream. All other clients have none.
        """
        chosen = {}
        for client, rng in zip(ids.tolist(), rngs, strict=True):
            mine = self.members(client)
            chosen[client] = rng.permutation(mine)[: max(1, rounded_down(share * len(mine)))]
        return self.part(chosen)

    def part(self, chosen: Mapping[int, np.ndarray]) -> "ClientData":
        """The same memory, in which each client has the examples with these indices [n_i]. All other clients have
        none.
        """
        lists = [chosen.get(client, self._members[:0]) for client in range(self.num_clients)]
        part = ClientData(self.inputs, self.targets, lists, self.inputs.device, self.streams, self.augment)
        part.part_of, part.chosen = self, chosen
        return part

    def members(self, client: int) -> np.ndarray:
        """The example indices of one client [n_i] int64."""
        return self._members[self._offsets[client] : self._offsets[client + 1]]

    def examples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [.., ...] and targets [..] of the examples with indices [..]."""
        rows = index.reshape(-1)  # index_select copies whole examples; indexing with brackets copies value by value
        inputs = self.inputs.index_select(0, rows)
        return inputs.view(*index.shape, *inputs.shape[1:]), self.targets.index_select(0, rows).view(index.shape)

    def minibatch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [.., ...] and targets [..] of a plan's indices [..], which count the views of example 0, then of 1,
        and so on.
        """
        if self.augment is None or self.num_views == 1:
            return self.examples(index)
        inputs, targets = self.examples(index // self.num_views)
        views = (index % self.num_views).reshape(-1)
        return self.augment.apply(inputs.view(-1, *self.inputs.shape[1:]), views).view(inputs.shape), targets

    def label_counts(self, ids: np.ndarray, num_classes: int) -> Tensor:
        """How many examples of each class clients `ids` [K] have [K, C] int64."""
        members = np.concatenate([self.members(i) for i in ids.tolist()] or [self._members[:0]])
        owners = torch.from_numpy(np.repeat(np.arange(len(ids)), self.num_examples[ids])).to(self.targets.device)
        own = self.targets[torch.from_numpy(members).to(self.targets.device)]
        return torch.bincount(owners * num_classes + own, minlength=len(ids) * num_classes).view(-1, num_classes)

    def offsets(self, loss_function: LossFunction, ids: np.ndarray, num_classes: int) -> Tensor | None:
        """The loss function's offsets for clients `ids` [K, C], by their label counts; None where it has none. Raises
        UserError where they break the contract of `LossFunction.offsets`.
        """
        if loss_function.offsets(torch.ones(1, num_classes, dtype=torch.int64)) is None:
            return None  # without counting labels
        counts = self.label_counts(ids, num_classes)
        found = loss_function.offsets(counts)
        right = isinstance(found, Tensor) and found.shape == counts.shape and not bool(found.isnan().any())
        require(right, loss_function, "offsets", f"a tensor {list(counts.shape)} without NaN", found)
        return found

    @property
    def assignment(self) -> tuple[np.ndarray, np.ndarray]:
        """All examples in client order [n], and the client of each [n]."""
        return self._members, np.repeat(np.arange(self.num_clients), self.num_examples)

    def steps_per_epoch(self, ids: np.ndarray, local: LocalTraining, drop_single: bool) -> np.ndarray:
        """Minibatches in one epoch [K]. The last partial minibatch counts, unless it has one example and `drop_single`
        is set, because batch norm cannot train on one example.
        """
        n, b = self.num_examples[ids], local.batch_size
        rest = n % b
        steps: np.ndarray = n // b + (rest > 0) - (drop_single & (rest == 1) & (n > 1)).astype(np.int64)
        return steps

    def num_steps(self, ids: np.ndarray, local: LocalTraining, drop_single: bool) -> np.ndarray:
        """Local steps of each client in a round [K]."""
        if local.steps is not None:
            return np.where(self.num_examples[ids] > 0, local.steps, 0)
        assert local.epochs is not None
        return self.steps_per_epoch(ids, local, drop_single) * local.epochs

    def examples_seen(self, ids: np.ndarray, local: LocalTraining, drop_single: bool) -> np.ndarray:
        """How many examples each client sees in a round, with repetitions [K]."""
        n, b = self.num_examples[ids], local.batch_size
        per_epoch = self.steps_per_epoch(ids, local, drop_single)
        epochs, rest = np.divmod(self.num_steps(ids, local, drop_single), np.maximum(per_epoch, 1))
        of_epoch = np.minimum(n, per_epoch * b)
        seen: np.ndarray = epochs * of_epoch + np.minimum(rest * b, of_epoch)
        return seen

    def plan(
        self,
        ids: np.ndarray,
        local: LocalTraining,
        *,
        seed: int,
        round: int,
        drop_single: bool,
        purpose: Purpose | None = None,
    ) -> Plan:
        """The minibatches of clients `ids` [K] in a round, a function of (seed, round, client, `purpose`). Each epoch
        has another order and other augmentations. `purpose` None is local training.
        """
        per_epoch = self.steps_per_epoch(ids, local, drop_single)
        steps = self.num_steps(ids, local, drop_single)
        b, n = local.batch_size, self.num_examples[ids]
        used = np.minimum(n, per_epoch * b)  # of an epoch
        most = int(steps.max(initial=0))
        indices = np.zeros((len(ids), most, b), dtype=np.int64)
        numbers = zip(*(each.tolist() for each in (ids, n, used, per_epoch, steps)), strict=True)
        purpose = purpose or self.streams.batches
        streams = generators(seed, purpose, round, ids)
        for rows, rng, (client, size, taken, of_epoch, count) in zip(indices, streams, numbers, strict=True):
            if not count:
                continue
            epochs = -(-count // of_epoch)
            whole = size == of_epoch * b and count == of_epoch * epochs  # no minibatch is short, no epoch is cut
            shuffled = rows[:count].reshape(epochs, size) if whole else np.empty((epochs, size), dtype=np.int64)
            shuffled[:] = self.members(client)
            rng.permuted(shuffled, axis=1, out=shuffled)
            if not whole:
                padded = np.zeros((epochs, of_epoch * b), dtype=np.int64)
                padded[:, :taken] = shuffled[:, :taken]
                rows[:count] = padded.reshape(-1, b)[:count]
        if self.augment is not None and self.num_views > 1:  # each purpose has its own part of the client's stream
            drawn = generators(seed, Purpose.AUGMENT, round, ids, step=purpose)
            for rows, rng, count in zip(indices, drawn, steps.tolist(), strict=True):
                self._draw_views(self.augment, rows[:count], rng)
        step = np.arange(most)
        ends = (step + 1) % np.maximum(per_epoch, 1)[:, None] == 0  # of an epoch
        sizes = np.where(ends, (used - (per_epoch - 1) * b)[:, None], b) * (step < steps[:, None])
        return Plan(torch.from_numpy(indices).to(self.inputs.device), sizes, steps - np.minimum(per_epoch, steps))

    def _draw_views(self, augment: Augment, rows: np.ndarray, rng: np.random.Generator) -> None:
        """Replaces a client's examples [t, b] by their views, in place. No step's views depend on later steps."""
        views = augment.views(rng.random((rows.size, augment.numbers)), self.inputs.shape[1:])
        right = views.shape == (rows.size,) and bool(((views >= 0) & (views < self.num_views)).all())
        require(right, augment, "views", f"views [{rows.size}] from 0 to {self.num_views - 1}", views)
        rows *= self.num_views
        rows += views.reshape(rows.shape)
