"""Whole local steps as one compiled graph: the gradient and the update, layer by layer and in place.

A gradient that is gathered into a vector, and a vector that moves as a whole, cost as much as a small model's layer.
"""

import logging
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedlab_runner.executors.work import Work
from fedlab_runner.optimizer import Optimizer
from fedlab_runner.population import Plan
from fedlab_runner.signals import deferred
from fedlab_runner.supervision import losses
from fedlab_runner.task import Batch, Task

Layers = list[Tensor]  # the parameters of one model, or of A models [A, ...]
Step = Callable[..., Any]  # (layers, slots, lr, t, inputs, targets, mask, *offsets) -> the loss, a scalar or [A]
_FEED = "feed"  # in a cohort's notes


def in_layers(work: Work) -> bool:
    """Whether the work is the task's own loss, followed as it is. What an algorithm adds, and a bound on the gradient's
    norm, need the gradient as one vector; dropout would draw other masks.
    """
    added = (work.loss, work.perturb, work.correct, work.per_step, work.local.clip_norm)
    plain = all(each is None for each in added) and not work.per_client
    return plain and not work.task.num_buffers and not work.task.has_dropout


def has_compiler() -> bool:
    """Whether this machine can compile."""
    return any(map(shutil.which, ("c++", "g++", "clang++")))


def graph_of(function: Step, **options: Any) -> Step:
    """torch.compile, so that processes can still be forked."""
    # A process's first gradient decides whether autograd starts threads, without which a fork has no autograd. The
    # compiler knows more devices than are there, so that it must not be the first to ask.
    one = torch.ones((), requires_grad=True)
    torch.autograd.grad(one * 2, one)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it says at length that there is no GPU
    compiled: Step = torch.compile(function, **options)
    return compiled


def is_ready(work: Work, clients: int) -> bool:
    """Whether the graph for so many clients side by side, or for one by one (0), has been asked for before."""
    return _key(work, width(clients)) in work.task.compiled


def width(clients: int) -> int:
    """How many models the step of a chunk moves. Each number would need a graph of its own, so many share one."""
    step = 1 << max(0, clients.bit_length() - 4)
    return -(-clients // step) * step


def train_one(work: Work, row: int, w: Tensor) -> Tensor:
    """Trains a client's model w [P] in place; its mean loss in the last epoch."""
    return _train(work, np.array([row]), list(work.task.views(w).values()), 0, lambda *_: None)[0]


def train_chunk(work: Work, rows: np.ndarray, y: Tensor, values: Tensor) -> None:
    """Clients in the order of their steps, most first: their models and mean losses in the last epoch into their rows
    of y [K, P] and values [K].

    All take as many steps as the first; what a client does beyond its own is not looked at.
    """
    doubles = width(len(rows)) - len(rows)
    moved = np.concatenate([rows[:1].repeat(doubles), rows])
    start = work.start.expand(len(moved), -1) if work.start.dim() == 1 else work.start[moved]
    layers = [
        start[:, begin : begin + shape.numel()].reshape(-1, *shape).clone(memory_format=torch.contiguous_format)
        for begin, shape in work.task.layout.values()
    ]

    def keep(first: int, end: int) -> None:
        if (first := max(first, doubles)) < end:
            done = torch.cat([layer[first:end].flatten(1) for layer in layers], 1)
            y.index_copy_(0, torch.from_numpy(moved[first:end]).to(y.device), done)

    values[rows] = _train(work, moved, layers, len(moved), keep)[doubles:]


def _train(work: Work, rows: np.ndarray, layers: Layers, models: int, keep: Callable[[int, int], None]) -> Tensor:
    """Moves the layers, of so many models side by side or of one (0), and gives the mean losses; `keep` is told which
    clients have done all their steps. A short minibatch is filled up with masked examples: one shape, one graph.
    """
    task, population, optimizer = work.task, work.population, work.local.make_optimizer()
    ready, step, feed = is_ready(work, models), _compiled(work, models), _feed(work, rows)
    slots = [[torch.zeros_like(layer) for layer in layers] for _ in range(optimizer.slots)]
    indices, masks = (part.unbind(1) if models else part[0].unbind() for part in (feed.indices, feed.masks))
    own = () if work.offsets is None else (work.offsets[rows if models else rows[0]],)
    active, values = feed.steps_above(len(indices)), []
    keep(active[0], len(rows))  # those that have nothing to do
    for t, (index, mask) in enumerate(zip(indices, masks, strict=True)):
        batch = task.batch(*population.examples(index), mask)
        with nullcontext() if ready or t else deferred():
            values.append(step(layers, slots, feed.lr, feed.times[t], *batch[:3], *own))
        keep(active[t + 1], active[t])
    if not values:
        return feed.weights.new_zeros(len(rows))
    counted = torch.stack(values, -1).view(len(rows), -1).where(feed.weights > 0, 0)
    return (feed.weights * counted).sum(1) / feed.weights.sum(1).clamp_min(1)


class _Feed(NamedTuple):
    """What the steps of k clients are given, and what their losses count."""

    indices: Tensor  # [k, T, b]
    masks: Tensor  # [k, T, b]: 1 for a real example; all are where there is none, as a mean needs one
    weights: Tensor  # [k, T]: the examples of the last epoch's minibatches
    steps: np.ndarray  # [k]
    times: tuple[Tensor, ...]  # the numbers of the steps, as tensors: a number would be compiled in, and so would lr
    lr: Tensor

    @staticmethod
    def of(work: Work, plan: Plan, steps: np.ndarray) -> "_Feed":
        sizes, b = plan.sizes, work.local.batch_size
        masks = np.arange(b) < np.where(sizes, sizes, b)[:, :, None]
        weights = sizes * (np.arange(sizes.shape[1]) >= plan.last_epoch[:, None])
        real, counted = (torch.from_numpy(part).to(work.task.device, work.task.dtype) for part in (masks, weights))
        times = torch.arange(sizes.shape[1], dtype=torch.float64).unbind()
        return _Feed(plan.indices, real, counted, steps, times, torch.tensor(work.lr, dtype=work.task.dtype))

    def select(self, rows: np.ndarray) -> "_Feed":
        """Of some of the clients."""
        steps = self.steps[rows]
        some: slice | Tensor = slice(rows[0], rows[0] + 1) if len(rows) == 1 else torch.from_numpy(rows)
        indices, masks, weights = (part[some, : steps.max(initial=0)] for part in self[:3])
        return self._replace(indices=indices, masks=masks, weights=weights, steps=steps)

    def steps_above(self, most: int) -> list[int]:
        """How many of the clients take a step more than 0, 1, ... of so many."""
        counts: list[int] = (self.steps[:, None] > np.arange(most + 1)).sum(0).tolist()
        return counts


def _feed(work: Work, rows: np.ndarray) -> _Feed:
    """For some of the clients; that of a small cohort is worked out at once."""
    if work.whole_plan is None:
        return _Feed.of(work, work.plan(rows), work.num_steps[rows])
    if _FEED not in work.notes:
        work.notes[_FEED] = _Feed.of(work, work.whole_plan, work.num_steps)
    whole: _Feed = work.notes[_FEED]
    return whole.select(rows)


def _compiled(work: Work, models: int) -> Step:
    key = _key(work, models)
    if key not in work.task.compiled:
        step = _step(work.task, work.local.make_optimizer(), stacked=models > 0)
        # The compiler counts its graphs by code object and gives up after eight: to each task its own.
        step.__code__ = step.__code__.replace()
        work.task.compiled[key] = graph_of(step, options={"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe})
    return work.task.compiled[key]


def _key(work: Work, models: int) -> tuple[Optimizer, int, bool, int]:
    return work.local.make_optimizer(), work.local.batch_size, work.offsets is not None, models


def _step(task: Task, optimizer: Optimizer, *, stacked: bool) -> Step:
    names = list(task.layout)

    def loss(layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor, *offsets: Tensor) -> Tensor:
        batch = Batch(inputs, targets, mask, *offsets)
        logits = task.forward(dict(zip(names, layers, strict=True)), inputs)
        return batch.mean(losses(logits, targets, batch.offsets))

    gradient = vmap(grad_and_value(loss), randomness="error") if stacked else grad_and_value(loss)

    def step(layers: Layers, slots: list[Layers], lr: Tensor, t: Tensor, *batch: Tensor) -> Tensor:
        value: Tensor
        gradients, value = gradient(layers, *batch)
        for i, (layer, g) in enumerate(zip(layers, gradients, strict=True)):
            optimizer.step(layer, g, tuple(slot[i] for slot in slots), lr, t)
        return value

    return step
