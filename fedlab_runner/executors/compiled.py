"""Compiles each kind of local step into one graph: gradient and update, layer by layer and in place.

Gathering the gradient into a vector and updating a whole vector would cost as much as a small model's layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value

from fedlab_runner.core.additions import lasts, parted, side_by_side
from fedlab_runner.core.additions_trial import draws
from fedlab_runner.core.client_data import Plan
from fedlab_runner.core.layered_model import LayeredModel
from fedlab_runner.core.model_family import Batch, ModelFamily
from fedlab_runner.core.optimizer import Masked, Optimizer
from fedlab_runner.core.work import Work
from fedlab_runner.executors.graphs import kept_graph
from fedlab_runner.utils.signals import check, deferred

Layers = list[Tensor]  # the parameters of one model, or of A models [A, ...]
# (layers, carried, slots, lr, t, inputs, targets, mask, *own) -> the loss, a scalar or [A]
Step = Callable[..., Any]
_FEED = "feed"  # key in a cohort's notes
MAX_GATHERED_BYTES = 2**19  # of examples that one call gathers for several steps


def in_layers(work: Work) -> bool:
    """Whether a compiled step can move the work's models layer by layer.

    A function that each round makes would be compiled in each round. Dropout, or a function that draws, would draw
    other numbers, and what mixes examples would see those that fill up a minibatch.
    """
    family, same = work.family, all(map(lasts, (work.loss, work.penalty, work.perturb, work.correct, work.per_step)))
    return same and not (family.writes_buffers or draws(work) or family.mixes or family.alone)


def is_ready(work: Work, clients: int) -> bool:
    """Whether the graph for `clients` clients side by side (0: one client alone) exists."""
    return _key(work, width(clients)) in work.family.compiled


def width(clients: int) -> int:
    """The number of models in a chunk's graph, at least `clients`. Chunks of similar sizes share a graph."""
    step = 1 << max(0, clients.bit_length() - 4)
    return -(-clients // step) * step


def train_client(work: Work, row: int, layers: Layers, carried: Tensor) -> Tensor:
    """Trains a client's model in place and returns its mean loss in the last epoch; `carried` are its buffers [B]."""
    feed, (at,) = _feed(work, np.array([row]))
    steps, first = int(feed.steps[at]), int(feed.last_epoch[at])
    if not steps:
        return feed.lr.new_zeros(())
    chosen = feed.indices[at, :steps], feed.masks[at, :steps]
    losses = list(_moved(work, np.array([row]), 0, layers, carried, feed, *chosen))
    weights = feed.weights[at, first:steps]
    return torch.dot(torch.stack(losses[first:]), weights) / weights.sum()


def train_clients(work: Work, rows: np.ndarray, y: Tensor, values: Tensor) -> None:
    """Trains clients, most steps first. Writes models and mean losses of the last epoch into y [K, D] and values [K].

    All clients take as many steps as the first one. Steps beyond a client's own number do not count.
    """
    doubles = width(len(rows)) - len(rows)
    rows = np.concatenate([rows[:1].repeat(doubles), rows])
    start, layout = work.starts(rows), list(_layout(work.family).values())
    carried = start[:, work.family.num_params :].clone()
    layers = [
        start[:, begin : begin + shape.numel()].reshape(-1, *shape).clone(memory_format=torch.contiguous_format)
        for begin, shape in layout
    ]
    del start
    begins = [*(begin for begin, _ in layout), work.family.num_params]
    feed, at = _feed(work, rows)
    most, places = int(feed.steps[at[0]]), torch.from_numpy(at).to(work.family.device)
    indices, masks, weights = (part[places, :most] for part in (feed.indices, feed.masks, feed.weights))
    active = (feed.steps[at, None] > np.arange(most + 1)).sum(0).tolist()  # clients with more than 0, 1, ... steps

    def keep(first: int, end: int) -> None:
        """Copies the models of clients that have done all their steps into y."""
        if (first := max(first, doubles)) < end:
            index = torch.from_numpy(rows[first:end]).to(y.device)
            for begin, layer in zip(begins, (*layers, carried), strict=True):
                done = layer[first:end].flatten(1)
                y[:, begin : begin + done.shape[1]].index_copy_(0, index, done)

    keep(active[0], len(rows))
    chosen = indices.transpose(0, 1), masks.transpose(0, 1)
    steps = _moved(work, rows, len(rows), layers, carried, feed, *chosen)
    losses = [weights.new_zeros(len(rows))]
    for t, loss in enumerate(steps):
        losses.append(loss)
        keep(active[t + 1], active[t])
    counted = torch.stack(losses, 1)[:, 1:].where(weights > 0, 0)
    values[rows[doubles:]] = ((weights * counted).sum(1) / weights.sum(1).clamp_min(1))[doubles:]


def _moved(
    work: Work,
    rows: np.ndarray,
    models: int,
    layers: Layers,
    carried: Tensor,
    feed: "_Feed",
    indices: Tensor,
    masks: Tensor,
) -> Iterator[Tensor]:
    """Takes local steps of `models` models side by side (0: of one) and yields each step's loss.

    Masked examples fill up a short minibatch, so that all have one shape and need one graph. `indices` and `masks` are
    [T, b] or [T, A, b].
    """
    optimizer, ready, step = _optimizer(work), is_ready(work, models), _compiled(work, models)
    slots = [[torch.zeros_like(layer) for layer in layers] for _ in range(optimizer.slots)]
    own: tuple[Tensor, ...] = ()
    for t, batch in enumerate(_batches(work, indices, masks)):
        if not t or work.per_step is not None:
            each = work.own(rows, t)
            own = (*(each if models else (o[0] for o in each)), *work.common)
        with nullcontext() if ready or t else _compiling():
            loss = step(layers, carried, slots, feed.lr, feed.times[t], *batch, *own)
        yield loss


@contextmanager
def _compiling() -> Iterator[None]:
    """Raises Interrupted at the end of the block for a signal that comes within the block, also in the place of the
    block's error: Ctrl-C in a terminal, like the signal of a job, ends the system's compiler too, whose failure would
    then count as one of the work.
    """
    try:
        with deferred():
            yield
    except Exception:
        check()
        raise


def _batches(work: Work, indices: Tensor, masks: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, targets and mask of each step.

    One call gathers small examples for several steps, because a call costs more than the copy of a few kilobytes.
    """
    family, client_data = work.family, work.client_data
    size = client_data.inputs[:1].numel() * indices[:1].numel() * family.dtype.itemsize  # bytes of a step
    ahead = max(1, MAX_GATHERED_BYTES // max(1, size))
    for some, mask in zip(torch.split(indices, ahead), torch.split(masks, ahead), strict=True):
        if some.dim() > 2:
            yield from zip(*family.batch(*client_data.minibatch(some), mask)[:3], strict=True)
        else:  # one client: its minibatches keep the memory layout of images
            batch = family.batch(*client_data.minibatch(some.flatten()), mask)
            yield from zip(*(torch.split(x, some.shape[1]) for x in batch[:2]), mask, strict=True)


class _Feed(NamedTuple):
    """The inputs of the local steps of k clients, and the weights of their losses."""

    indices: Tensor  # [k, T, b]
    masks: Tensor  # [k, T, b]: 1 for a real example; all 1 in a step without real examples, as a mean needs one
    weights: Tensor  # [k, T]: the numbers of examples of the last epoch's minibatches
    last_epoch: np.ndarray  # [k]: the first step of the last epoch
    steps: np.ndarray  # [k]
    times: tuple[Tensor, ...]  # step numbers as tensors, because a plain number would become a constant of the graph
    lr: Tensor

    @staticmethod
    def of(work: Work, plan: Plan, steps: np.ndarray) -> "_Feed":
        sizes, b = plan.sizes, work.local.batch_size
        masks = np.arange(b) < np.where(sizes, sizes, b)[:, :, None]
        weights = sizes * (np.arange(sizes.shape[1]) >= plan.last_epoch[:, None])
        real, counted = (torch.from_numpy(part).to(work.family.device, work.family.dtype) for part in (masks, weights))
        times = torch.arange(sizes.shape[1], dtype=torch.float64).unbind()
        lr = torch.tensor(work.lr, dtype=work.family.dtype)
        return _Feed(plan.indices, real, counted, plan.last_epoch, steps, times, lr)


def _feed(work: Work, rows: np.ndarray) -> tuple[_Feed, np.ndarray]:
    """A feed with some of the clients, and their places in it. A small cohort has one feed for all clients."""
    if work.whole_plan is None:
        return _Feed.of(work, work.plan(rows), work.num_steps[rows]), np.arange(len(rows))
    if _FEED not in work.notes:
        work.notes[_FEED] = _Feed.of(work, work.whole_plan, work.num_steps)
    whole: _Feed = work.notes[_FEED]
    return whole, rows


def _compiled(work: Work, models: int) -> Step:
    step = partial(_step, work, stacked=models > 0)
    return kept_graph(work.family.compiled, _key(work, models), step, layer_by_layer=True)


def _key(work: Work, models: int) -> tuple[Any, ...]:
    added = work.loss, work.penalty, work.perturb, work.correct, work.per_step
    shapes = tuple(t.shape[1:] for t in work.per_client), tuple(t.shape for t in work.common)
    how = _optimizer(work), work.local.batch_size, work.local.clip_norm, work.frozen, work.offsets is not None
    return *how, models, added, shapes, work.family.active_part


def _optimizer(work: Work) -> Optimizer:
    """The optimiser of the layers that move; the others take no step."""
    made = work.make_optimizer()
    return made.inner if isinstance(made, Masked) else made


def _step(work: Work, *, stacked: bool) -> Step:
    """The step of this kind of work, for one model or for several side by side. It keeps no reference to the work."""
    gradient, optimizer, moving, common = _gradient(work), _optimizer(work), work.moving, len(work.common)
    carries = work.family.num_buffers > 0
    if stacked:
        gradient = side_by_side(gradient, common)

    def step(layers: Layers, carried: Tensor, slots: list[Layers], lr: Tensor, t: Tensor, *batch: Tensor) -> Tensor:
        value: Tensor
        gradients, value, after = gradient(layers, carried, *batch)
        for i, (layer, g) in enumerate(zip(layers, gradients, strict=True)):
            if moving[i]:
                optimizer.step(layer, g, tuple(slot[i] for slot in slots), lr, t)
        if carries:
            carried.copy_(after)
        return value

    return step


def _layout(family: ModelFamily) -> dict[str, tuple[int, torch.Size]]:
    """The layout of the parameters alone."""
    return {name: (start, shape) for name, (start, shape) in family.layout.items() if start < family.num_params}


def _clipped(gradients: Layers, owners: list[int], norm: float) -> Layers:
    """Gradients of layers, scaled down to at most the Euclidean norm `norm` for each model; `owners` are the layers'
    models.
    """
    lengths: list[Layers] = [[] for _ in range(max(owners) + 1)]
    for g, owner in zip(gradients, owners, strict=True):
        lengths[owner].append(torch.linalg.vector_norm(g))
    scales = [norm / torch.linalg.vector_norm(torch.stack(each)).clamp_min(norm) for each in lengths]
    return [g * scales[owner] for g, owner in zip(gradients, owners, strict=True)]


def _gradient(work: Work) -> Callable[..., Any]:
    """A function (layers, carried, inputs, targets, mask, *own) -> the gradients that one model's layers follow, the
    loss and the buffers after it.
    """
    family, of_model, penalty, perturb, correct = work.family, work.loss, work.penalty, work.perturb, work.correct
    layout, first, frozen, clip = _layout(family), int(work.offsets is not None), work.frozen, work.local.clip_norm
    sizes = [shape.numel() for _, shape in layout.values()]
    owners = np.searchsorted(np.cumsum(family.models), np.cumsum(sizes)).tolist()  # the number of each layer's model

    def objective(layers: Layers, carried: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        own = batch[3 + first :]
        minibatch = Batch(*batch[: 3 + first])
        model = LayeredModel(family, dict(zip(layout, layers, strict=True)), carried, frozen)
        value = family.loss(model, minibatch) if of_model is None else of_model(model, minibatch, *own)
        if penalty is not None:
            for layer, mine in zip(layers, parted(own, sizes), strict=True):
                value = value + penalty(layer.reshape(-1), *mine)
        return value, model.buffers

    of_layers = grad_and_value(objective, has_aux=True)

    def gradient(layers: Layers, carried: Tensor, *batch: Tensor) -> tuple[Layers, Tensor, Tensor]:
        gradients, (value, after) = of_layers(layers, carried, *batch)
        own = batch[3 + first :]
        if perturb is not None:
            moves = torch.split(perturb(torch.cat([g.reshape(-1) for g in gradients]), *own), sizes)
            there = [layer + move.view(layer.shape) for layer, move in zip(layers, moves, strict=True)]
            gradients, _ = of_layers(there, carried, *batch)
        if clip is not None:
            gradients = _clipped(gradients, owners, clip)
        if correct is not None:
            pairs = zip(gradients, parted(own, sizes), strict=True)
            gradients = [correct(g.reshape(-1), *mine).view(g.shape) for g, mine in pairs]
        return gradients, value, after

    return gradient
