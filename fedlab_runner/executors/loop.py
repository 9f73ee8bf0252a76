"""Trains one client after another. This is the reference with which every other executor must agree."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from fedlab_runner.core.additions import lasts, parted
from fedlab_runner.core.executor import OfOne, Parallel
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.optimizer import SGD, zero_slots
from fedlab_runner.core.work import Gradient, Work, gradient_of
from fedlab_runner.executors._chunks import Chunk, ChunkedExecutor, one_by_one
from fedlab_runner.executors._fork.buffers import ONE
from fedlab_runner.executors.compiled import in_layers, is_ready, train_client
from fedlab_runner.executors.graphs import kept_graph

_BUFFER, _GRAPH = "buffer", "graph"  # keys in a cohort's notes
Move = Callable[..., Tensor]  # (step, own, inputs, targets, mask) -> the loss, after a step of one client's model


@dataclass(frozen=True)
class Loop(ChunkedExecutor):
    """Plain autograd, one client and one minibatch at a time; `compile` compiles the steps with torch.compile."""

    compile: bool

    def parallel(self, clients: int) -> Parallel:
        return Parallel(min(1, clients), min(1, clients), min(1, clients))

    def chunks(self, work: Work) -> list[Chunk]:
        return [Chunk(rows[k : k + 1], frozen) for frozen, rows in work.groups() for k in range(len(rows))]

    def compiling_chunks(self, work: Work) -> list[int]:
        return [0] if self.compile and not is_ready(work, 0) else []

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return one_by_one(function, *rows)

    def train_chunk(self, work: Work, chunk: Chunk, y: Tensor, losses: Tensor) -> None:
        family, client_data, row = work.family, work.client_data, int(chunk.rows[0])
        family.mode(True, frozen_norm=chunk.frozen_norm)
        w, layers = _buffer(work)  # not the row of y, whose alignment, and so the last bits, would depend on the row
        work.begin(w, row)
        work.seed_globals(row)
        if self.compile and in_layers(work):
            losses[row] = train_client(work, row, layers, w[family.num_params :])
            y[row] = w
            return
        plan, weighted_loss, seen = work.plan(chunk.rows), w.new_zeros(()), 0
        own: tuple[Tensor, ...] | None = None
        with ExitStack() as stack:
            move = self._move(work, w, stack)
            for t, size in enumerate(plan.sizes[0, : work.num_steps[row]].tolist()):
                index = plan.indices[0, t, :size]
                batch = family.batch(*client_data.minibatch(index), w.new_ones(size))
                if own is None or work.per_step is not None:
                    own = (*(o[0] for o in work.own(chunk.rows, t)), *work.common)
                loss = move(t, own, *batch[:3])
                if t >= plan.last_epoch[0]:
                    weighted_loss, seen = weighted_loss + loss * size, seen + size
        y[row], losses[row] = w, weighted_loss / max(seen, 1)

    def _move(self, work: Work, w: Tensor, stack: ExitStack) -> Move:
        """The local step of a client's model w [D]."""
        family, optimizer = work.family, work.make_optimizer()
        params, buffers = w[: family.num_params], w[family.num_params :]
        slots = zero_slots(optimizer, params)
        if work.loss is None and not self.compile:
            module = _Bound(work, stack.enter_context(family.bound(w)), params, buffers)
            plain = isinstance(optimizer, SGD) and not slots
            if plain and work.local.clip_norm is None and work.perturb is None:
                return _by_layers(work, module)
            gradient = work.followed(module.gradient)
        else:
            gradient = work.followed(self._gradient(work))

        def move(t: int, own: tuple[Tensor, ...], *batch: Tensor) -> Tensor:
            g, (loss, updated) = gradient(params, buffers, *batch, *own)
            optimizer.step(params, g, slots, work.lr, t)
            if updated is not buffers:
                buffers.copy_(updated)
            return loss

        return move

    def _gradient(self, work: Work) -> Gradient:
        """The gradient of one client's objective; a compiled one is a single graph."""
        if not self.compile:
            return gradient_of(work.objective())

        def made() -> Gradient:
            of = grad(work.objective(), has_aux=True)

            def gradient(*args: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # the compiler passes torch's code by
                found: tuple[Tensor, tuple[Tensor, Tensor]] = of(*args)
                return found

            return gradient

        if not (lasts(work.loss) and lasts(work.penalty)):
            return kept_graph(work.notes, _GRAPH, made)
        key = ("alone", work.loss, work.penalty, work.frozen, work.offsets is None, work.family.active_part)
        return kept_graph(work.family.compiled, key, made)


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


class _Bound:
    """The model family's own loss with the penalty, for the model that the module is bound to.

    It calls the module directly: rebuilding parameters from a vector in each step would cost as much as a layer.
    """

    def __init__(self, work: Work, leaves: list[Tensor], params: Tensor, buffers: Tensor) -> None:
        self._family, self._penalty, self._first = work.family, work.penalty, int(work.offsets is not None)
        self.leaves, self._params, self._buffers = leaves, params, buffers
        self._moving = [leaf for leaf, moves in zip(leaves, work.moving, strict=True) if moves]
        self._places = [i for i, moves in enumerate(work.moving) if moves]

    def step(self, own: tuple[Tensor, ...], inputs: Tensor, targets: Tensor) -> tuple[Tensor, list[tuple[int, Tensor]]]:
        """The loss without the penalty, and its gradient by each tensor that moves, with the tensor's number."""
        value = self._family.bound_loss(inputs, targets, own[0] if self._first else None)
        grads = torch.autograd.grad(value, self._moving, materialize_grads=True) if self._moving else ()
        return value.detach(), list(zip(self._places, grads, strict=True))

    def pull(self, own: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The penalty, and its gradient [P]."""
        assert self._penalty is not None
        if (by_hand := getattr(self._penalty, "gradient", None)) is not None:
            with torch.no_grad():
                return self._penalty(self._params, *own[self._first :]), by_hand(self._params, *own[self._first :])
        leaf = self._params.detach().requires_grad_()
        value = self._penalty(leaf, *own[self._first :])
        (g,) = torch.autograd.grad(value, leaf)
        return value.detach(), g

    def gradient(
        self, params: Tensor, _: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *own: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The gradient [P]. If it is taken at other parameters, the module's own values are restored afterwards."""
        if params is self._params:
            return self._gradient(inputs, targets, own)
        kept, statistics = self._params.clone(), self._buffers.clone()
        self._params.copy_(params)
        found = self._gradient(inputs, targets, own)
        self._params.copy_(kept)
        self._buffers.copy_(statistics)
        return found

    def _gradient(
        self, inputs: Tensor, targets: Tensor, own: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        value, grads = self.step(own, inputs, targets)
        found = dict(grads)
        zero = self._params.new_zeros(())
        gradients = (found.get(i, zero).expand_as(leaf).reshape(-1) for i, leaf in enumerate(self.leaves))
        g = torch.cat(list(gradients))
        if self._penalty is not None:
            more, pull = self.pull(own)
            value, g = value + more, g.add_(pull)
        return g.detach(), (value, self._buffers)


def _by_layers(work: Work, module: _Bound) -> Move:
    """The local step by plain SGD, layer by layer, for the model that the module is bound to.

    It makes no vector of the whole gradient, which would cost as much as a small layer.
    """
    optimizer, correct, first = work.make_optimizer(), work.correct, int(work.offsets is not None)
    sizes = [leaf.numel() for leaf in module.leaves]
    parts: list[tuple[Tensor, ...]] = []  # of `whole`, for each tensor
    whole: tuple[Tensor, ...] | None = None

    def move(t: int, own: tuple[Tensor, ...], inputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        nonlocal parts, whole
        value, grads = module.step(own, inputs, targets)
        if work.penalty is not None:
            more, pull = module.pull(own)
            pulls = parted((pull,), sizes)
            value, grads = value + more, [(i, g + pulls[i][0].view(g.shape)) for i, g in grads]
        if correct is not None and own is not whole:
            parts, whole = parted(own[first:], sizes), own
        for i, g in grads:
            followed = g if correct is None else correct(g.reshape(-1), *parts[i]).view(g.shape)
            optimizer.step(module.leaves[i].data, followed, (), work.lr, t)
        return value

    return move
