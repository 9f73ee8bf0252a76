"""Models of several architectures that learn on the same minibatches, each with an optimiser of its own.

All models give their logits; then the students step along the gradients by their logits. Other models do not change.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedlab_runner.core.aligned import copied_rows
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.optimizer import Optimizer, zero_slots
from fedlab_runner.core.separate_module import SeparateModule
from fedlab_runner.core.work import clip_rows
from fedlab_runner.executors.team import Team, team

MIN_SHARED_FLOPS = 5e7  # floating-point operations of a model's step, from which on threads share the models


class Group(NamedTuple):
    """Models of one architecture."""

    family: ModelFamily
    models: Tensor  # [k, D]
    learn: bool


class Step(NamedTuple):
    """How students step."""

    optimizer: Optimizer
    clip_norm: float | None
    lr: float


class Pupils(Protocol):
    """Groups of models; groups of students come first."""

    def logits(self, batch: Batch) -> Tensor:
        """All models' logits on a minibatch, in training mode [M, b, C]."""
        ...

    def step(self, gradient: Tensor, t: int) -> None:
        """Moves the students along the gradient by their last logits [m, b, C]; t counts steps from 0."""
        ...

    def learnt(self) -> list[Tensor]:
        """The models of each group of students [k, D]."""
        ...


@contextmanager
def pupils(groups: Sequence[Group], step: Step, executor: Executor) -> Iterator[Pupils]:
    """The pupils for a device. On a CPU every model is a network of its own; on a GPU one call serves a whole group."""
    if groups[0].family.device.type != "cpu":
        yield _Stacks(groups, step, executor)
        return
    with team() as its:
        networks = _Networks(groups, step, its)
        yield networks
        networks.give_back()


class _Network:
    """One model: its network, and views of its row and of its slots by layer."""

    def __init__(self, family: ModelFamily, w: Tensor, learn: bool, optimizer: Optimizer) -> None:
        self.family, self.learn, self.module = family, learn, SeparateModule(family, w)
        self._layers = [leaf.data for leaf in self.module.leaves]
        self._slots = [zero_slots(optimizer, layer) for layer in self._layers] if learn else []
        self._logits = w.new_empty(0)  # the last logits, with their graph if the model learns

    def logits(self, inputs: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.learn):
            self._logits = self.module(inputs)
        return self._logits.detach()

    def step(self, gradient: Tensor, how: Step, t: int) -> None:
        found = list(torch.autograd.grad(self._logits, self.module.leaves, gradient, materialize_grads=True))
        if how.clip_norm is not None:
            clipped = clip_rows(torch.cat([g.reshape(-1) for g in found]), how.clip_norm)
            parts = torch.split(clipped, [g.numel() for g in found])
            found = [part.view(g.shape) for part, g in zip(parts, found, strict=True)]
        for layer, g, slots in zip(self._layers, found, self._slots, strict=True):
            how.optimizer.step(layer, g, slots, how.lr, t)


class _Networks:
    """Networks of their own, some on each thread of a team.

    No gradient of a whole model, and no stack of several, is made: for small models that costs as much as a layer.
    """

    def __init__(self, groups: Sequence[Group], step: Step, its: Team) -> None:
        self._step, self._team = step, its
        self._frozen_norm: bool | None = None  # of the last minibatch
        self._families = [group.family for group in groups]
        own = [(group, copied_rows(len(group.models), group.models)) for group in groups]
        self._students = [rows for group, rows in own if group.learn]
        self._networks = [_Network(group.family, w, group.learn, step.optimizer) for group, rows in own for w in rows]
        self._parts: list[list[int]] = []  # the networks of each thread

    def logits(self, batch: Batch) -> Tensor:
        self._parts = self._parts or self._divided(batch)
        self._begin(len(batch.targets) == 1)
        found = [batch.inputs] * len(self._networks)

        def of_part(part: int) -> None:
            for i in self._parts[part]:
                found[i] = self._networks[i].logits(batch.inputs)

        self._team.each(of_part, len(self._parts))
        return torch.stack(found)

    def step(self, gradient: Tensor, t: int) -> None:
        def of_part(part: int) -> None:
            for i in self._parts[part]:
                if self._networks[i].learn:
                    self._networks[i].step(gradient[i], self._step, t)

        self._team.each(of_part, len(self._parts))

    def learnt(self) -> list[Tensor]:
        return self._students

    def give_back(self) -> None:
        """Ends their work: the next pupils take over the modules."""
        for network in self._networks:
            network.module.give_back()

    def _begin(self, frozen_norm: bool) -> None:
        """Sets all networks to training, batch norm on stored statistics where it would see a single example."""
        if self._frozen_norm == frozen_norm:
            return
        self._frozen_norm = frozen_norm
        for family in self._families:
            family.mode(True, frozen_norm=frozen_norm)
        for network in self._networks:
            network.module.follow_mode()

    def _divided(self, batch: Batch) -> list[list[int]]:
        """Even shares of the operations, the same for the same models; one share where threads would not gain."""
        costs = [
            len(batch.targets) * (flops.step if each.learn else flops.forward)
            for each in self._networks
            for flops in [each.family.flops(batch.inputs)]
        ]
        # Threads take turns at what small operations leave to Python, and torch's own wait for each other at each of
        # them; dropout draws from one stream.
        if small := max(costs) < MIN_SHARED_FLOPS:
            self._team.alone()
        alone = small or any(family.draws for family in self._families)
        parts: list[list[int]] = [[] for _ in range(1 if alone else min(self._team.size, len(costs)))]
        loads = [0] * len(parts)
        for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
            least = loads.index(min(loads))
            parts[least].append(i)
            loads[least] += costs[i]
        return [sorted(part) for part in parts]


class _Stacks:
    """The models of a group side by side in one call."""

    def __init__(self, groups: Sequence[Group], step: Step, executor: Executor) -> None:
        self._groups, self._step, self._executor = groups, step, executor
        sizes = [group.family.num_params for group in groups]
        self._params = [group.models[:, :p].clone() for group, p in zip(groups, sizes, strict=True)]
        self._buffers = [group.models[:, p:].clone() for group, p in zip(groups, sizes, strict=True)]
        self._slots = [
            zero_slots(step.optimizer, w) if g.learn else () for g, w in zip(groups, self._params, strict=True)
        ]
        self._seen: list[tuple[Tensor, Tensor]] = []  # the parameters and the logits of each group of students

    def logits(self, batch: Batch) -> Tensor:
        found: list[Tensor] = []
        self._seen = []
        for g, group in enumerate(self._groups):
            with torch.set_grad_enabled(group.learn):
                leaf = self._params[g].detach().requires_grad_(group.learn)
                logits, buffers = self._of_group(group.family, leaf, self._buffers[g], batch)
            if group.learn:
                self._seen.append((leaf, logits))
                self._buffers[g] = buffers.detach()
            found.append(logits.detach())
        return torch.cat(found)

    def step(self, gradient: Tensor, t: int) -> None:
        parts = torch.split(gradient, [len(logits) for _, logits in self._seen])
        pairs = zip(self._params, self._slots, self._seen, parts, strict=False)  # students come first
        for w, slots, (leaf, logits), part in pairs:
            (g,) = torch.autograd.grad(logits, leaf, part, materialize_grads=True)
            g = g if self._step.clip_norm is None else clip_rows(g, self._step.clip_norm)
            self._step.optimizer.step(w, g, slots, self._step.lr, t)

    def learnt(self) -> list[Tensor]:
        students = zip(self._groups, self._params, self._buffers, strict=True)
        return [torch.cat([w, b], 1) for group, w, b in students if group.learn]

    def _of_group(self, family: ModelFamily, params: Tensor, buffers: Tensor, batch: Batch) -> list[Tensor]:
        """Logits [k, b, C] of models in training mode, and their new buffers [k, B]."""
        family.mode(True, frozen_norm=len(batch.targets) == 1)

        def one(params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
            model = FunctionalModel(family, params, buffers)
            return model(batch.inputs), model.buffers

        return self._executor.map_models(family, one, params, buffers)
