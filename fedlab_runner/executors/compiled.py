"""Whole local steps as one compiled graph: the gradient and the update, layer by layer and in place.

A gradient that is gathered into a vector, and a vector that moves as a whole, cost as much as a small model's layer.
"""

import itertools
import logging
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

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
    task, population, plan, optimizer = work.task, work.population, work.plan(rows), work.local.make_optimizer()
    ready, step = is_ready(work, models), _compiled(work, models)
    slots = [[torch.zeros_like(layer) for layer in layers] for _ in range(optimizer.slots)]
    active, last = (plan.sizes > 0).sum(0).tolist(), int(plan.last_epoch.min())
    masks, times = _masks(plan.sizes, work), torch.arange(len(active), dtype=torch.float64).unbind()
    lr = torch.tensor(work.lr, dtype=task.dtype)  # a number would be compiled in, and so would that of the step
    total, weights = masks.new_zeros(len(rows)), _weights(plan, work)
    every: slice | int = slice(None) if models else 0
    own = () if work.offsets is None else (work.offsets[rows[every]],)
    keep(active[0] if active else 0, len(rows))  # those that have nothing to do
    for t, (now, then) in enumerate(itertools.pairwise([*active, 0])):
        batch = task.batch(*population.examples(plan.indices[every, t]), masks[every, t])
        with nullcontext() if ready or t else deferred():
            value = step(layers, slots, lr, times[t], *batch[:3], *own).reshape(-1)
        if t >= last:
            total[:now] += weights[:now, t] * value[:now]
        keep(then, now)
    return total / weights.sum(1).clamp_min(1)


def _masks(sizes: np.ndarray, work: Work) -> Tensor:
    """Which of the examples of minibatches of sizes [k, T] are real [k, T, b]; all of those that nobody looks at, as a
    mean needs one.
    """
    places = np.arange(work.local.batch_size)
    return torch.from_numpy(places < np.where(sizes, sizes, len(places))[:, :, None]).to(
        work.task.device, work.task.dtype
    )


def _weights(plan: Plan, work: Work) -> Tensor:
    """By what the loss of each step counts [k, T]: the examples of the last epoch's minibatches."""
    counted = plan.sizes * (np.arange(plan.sizes.shape[1]) >= plan.last_epoch[:, None])
    return torch.from_numpy(counted).to(work.task.device, work.task.dtype)


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
