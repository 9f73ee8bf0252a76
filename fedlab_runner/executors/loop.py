"""One client after another: the reference, with which every other executor must agree."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.optimizer import zero_slots
from fedlab_runner.core.work import Gradient, OfOne, Work, gradient_of, one_by_one
from fedlab_runner.executors._chunks import Chunk, ChunkedExecutor
from fedlab_runner.executors._fork.buffers import ONE
from fedlab_runner.executors.compiled import graph_of, in_layers, is_ready, train_client

_BUFFER = "buffer"  # key in a cohort's notes
Move = Callable[..., Tensor]  # (step, inputs, targets, mask, *own) -> the loss, after a step of one client's model


@dataclass(frozen=True)
class Loop(ChunkedExecutor):
    """Plain autograd, one client and one minibatch at a time; `compile` compiles the steps with torch.compile."""

    compile: bool

    def max_parallel_clients(self, clients: int) -> int:
        return min(1, clients)

    def chunks(self, work: Work) -> list[Chunk]:
        return [Chunk(rows[k : k + 1], frozen) for frozen, rows in work.groups() for k in range(len(rows))]

    def compiling_chunks(self, work: Work) -> list[int]:
        return [0] if self.compile and not (in_layers(work) and is_ready(work, 0)) else []

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return one_by_one(function, *rows)

    def train_chunk(self, work: Work, chunk: Chunk, y: Tensor, losses: Tensor) -> None:
        family, client_data, row = work.family, work.client_data, int(chunk.rows[0])
        family.mode(True, frozen_norm=chunk.frozen_norm)
        w, layers = _buffer(work)  # not the row of y: its alignment, and so the last bits, would depend on the row
        work.begin(w, row)
        if self.compile and in_layers(work):
            losses[row] = train_client(work, row, layers)  # the step draws no random numbers
            y[row] = w
            return
        work.seed_torch(row)
        plan, weighted_loss, seen = work.plan(chunk.rows), w.new_zeros(()), 0
        with ExitStack() as stack:
            move = self._move(work, w, stack)
            for t, size in enumerate(plan.sizes[0, : work.num_steps[row]].tolist()):
                index = plan.indices[0, t, :size]
                batch = family.batch(*client_data.minibatch(index), w.new_ones(size))
                loss = move(t, *batch[:3], *(o[0] for o in work.own(chunk.rows, t)))
                if t >= plan.last_epoch[0]:
                    weighted_loss, seen = weighted_loss + loss * size, seen + size
        y[row], losses[row] = w, weighted_loss / max(seen, 1)

    def _move(self, work: Work, w: Tensor, stack: ExitStack) -> Move:
        """The local step of a client's model w [D]."""
        family, optimizer = work.family, work.make_optimizer()
        params, buffers = w[: family.num_params], w[family.num_params :]
        slots = zero_slots(optimizer, params)
        if work.loss is None and work.perturb is None and not self.compile:
            leaves = stack.enter_context(family.bound(w))
            if work.local.clip_norm is None and work.correct is None and not optimizer.slots:
                return _by_layers(work, leaves)
            gradient = work.followed(_module_gradient(work, leaves, buffers))
        else:
            objective = work.objective()
            gradient = work.followed(gradient_of(graph_of(objective, family) if self.compile else objective))

        def move(t: int, *batch: Tensor) -> Tensor:
            g, (loss, updated) = gradient(params, buffers, *batch)
            optimizer.step(params, g, slots, work.lr, t)
            if updated is not buffers:
                buffers.copy_(updated)
            return loss

        return move


def _buffer(work: Work) -> tuple[Tensor, list[Tensor]]:
    """A buffer for one model [D], shared by all clients of a cohort, and views of its trainable parameters."""
    if _BUFFER not in work.notes:
        family = work.family
        if family.device.type == "cpu":
            w = ONE.take(1, family.size, family.dtype)[0]
        else:
            w = torch.empty(family.size, device=family.device, dtype=family.dtype)
        work.notes[_BUFFER] = w, list(family.views(w[: family.num_params]).values())
    found: tuple[Tensor, list[Tensor]] = work.notes[_BUFFER]
    return found


def _by_layers(work: Work, leaves: list[Tensor]) -> Move:
    """The local step, layer by layer, of the model that the module is bound to.

    No vector of the whole gradient is made: to make one costs as much as a small layer.
    """
    family, optimizer, supervised = work.family, work.make_optimizer(), work.offsets is not None

    def move(t: int, inputs: Tensor, targets: Tensor, mask: Tensor, *own: Tensor) -> Tensor:
        value = family.bound_loss(inputs, targets, own[0] if supervised else None)
        for leaf, g in zip(leaves, torch.autograd.grad(value, leaves, materialize_grads=True), strict=True):
            optimizer.step(leaf.data, g, (), work.lr, t)
        return value.detach()

    return move


def _module_gradient(work: Work, leaves: list[Tensor], buffers: Tensor) -> Gradient:
    """The gradient, as a vector, of the model family's own loss at the model that the module is bound to.

    A plain call of the module: to rebuild its parameters from a vector in each step costs as much as a layer.
    """
    family, supervised = work.family, work.offsets is not None

    def gradient(
        params: Tensor, _: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *own: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        value = family.bound_loss(inputs, targets, own[0] if supervised else None)
        grads = torch.autograd.grad(value, leaves, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in grads]), (value.detach(), buffers)

    return gradient
