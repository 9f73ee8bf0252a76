"""Compiles each kind of local step into one graph: gradient and update, layer by layer and in place.

Gathering the gradient into a vector and updating a whole vector would cost as much as a small model's layer.
"""

import itertools
import logging
import os
import re
import shutil
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value

from fedlab_runner.core.additions import lasts, parted, side_by_side
from fedlab_runner.core.client_data import Plan
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch, ModelFamily
from fedlab_runner.core.work import Work
from fedlab_runner.executors._run_notes import machine_type
from fedlab_runner.utils.files import user_cache
from fedlab_runner.utils.signals import deferred

_log = logging.getLogger(__name__)

Layers = list[Tensor]  # the parameters of one model, or of A models [A, ...]
Step = Callable[..., Any]  # (layers, slots, lr, t, inputs, targets, mask, *own) -> the loss, a scalar or [A]
_numbers = itertools.count()  # of the graphs of this process
_FEED = "feed"  # key in a cohort's notes
_BROKEN_LIBRARY = re.compile(r"ImportError: (\S+\.so): ")  # in an error of the compiler
MAX_GATHERED_BYTES = 2**19  # of examples that one call gathers for several steps


def in_layers(work: Work) -> bool:
    """Whether the work follows the gradient of the model family's own loss, with additions of an algorithm.

    Another loss, or a bound on the gradient's norm, needs parameters or gradient as one vector. A function that each
    round makes would be compiled in each round. Dropout would draw other masks.
    """
    if any(each is not None for each in (work.loss, work.per_step, work.local.clip_norm)) or work.frozen:
        return False
    same = all(map(lasts, (work.penalty, work.perturb, work.correct)))
    return same and not work.family.num_buffers and not work.family.draws


def has_compiler() -> bool:
    """Whether this machine has a C++ compiler."""
    return any(map(shutil.which, ("c++", "g++", "clang++")))


def graph_of(function: Any, *, layer_by_layer: bool = False) -> Step:
    """Compiles a step, a Python function, with torch.compile in such a way that the process can still fork.

    The user's cache folder keeps compiled code for later runs, by type of machine. The environment variable
    TORCHINDUCTOR_CACHE_DIR names another folder. If a library in the cache cannot be loaded, because a killed process
    has left it half-written, this compiles it again.
    """
    # torch's default, the system's folder for temporary files, is empty after a restart and, on a cluster, for each
    # job.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_cache() / "compiled" / machine_type()))
    from fedlab_runner.executors._compiler_passes import ExplicitScale, UpdateInPlace  # imports the compiler: a second

    # A process's first gradient decides whether autograd starts threads; a fork of a process with such threads has no
    # autograd. The compiler knows more devices than the machine has, so that it must not compute the first gradient.
    one = torch.ones((), requires_grad=True)
    torch.autograd.grad(one * 2, one)
    # This logger warns at length that the machine has no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    options: dict[str, Any] = {"post_grad_custom_pre_pass": ExplicitScale()}
    if layer_by_layer:  # every step has the same tensors as layers
        options["guard_filter_fn"] = torch.compiler.keep_tensor_guards_unsafe
        options["post_grad_custom_post_pass"] = UpdateInPlace()
    # The compiler counts its graphs by code object and gives up after eight, so that each has a code object. And it
    # remembers shapes by the name of the code: those of another model would make sizes of this one variable.
    code = function.__code__
    function.__code__ = code.replace(co_name=f"{code.co_name}_{next(_numbers)}")
    compiled: Step = torch.compile(function, options=options)

    def step(*args: Any) -> Any:
        while True:
            try:
                return compiled(*args)
            except RuntimeError as error:  # the compiler's error, which holds the import's
                broken = _BROKEN_LIBRARY.search(str(error))
                if broken is None or not Path(broken[1]).exists():
                    raise
                _log.warning("%s in the compiler's cache is damaged: it is compiled again", broken[1])
                Path(broken[1]).unlink()

    return step


def kept_graph(family: ModelFamily, key: Hashable, make: Callable[[], Step], *, layer_by_layer: bool = False) -> Step:
    """The family's graph of this key; `make` gives the function when it is compiled."""
    if key not in family.compiled:
        family.compiled[key] = graph_of(make(), layer_by_layer=layer_by_layer)
    return family.compiled[key]


def is_ready(work: Work, clients: int) -> bool:
    """Whether the graph for `clients` clients side by side (0: one client alone) exists."""
    return _key(work, width(clients)) in work.family.compiled


def width(clients: int) -> int:
    """The number of models in a chunk's graph, at least `clients`. Chunks of similar sizes share a graph."""
    step = 1 << max(0, clients.bit_length() - 4)
    return -(-clients // step) * step


def train_client(work: Work, row: int, layers: Layers) -> Tensor:
    """Trains a client's model in place and returns its mean loss in the last epoch."""
    feed, (at,) = _feed(work, np.array([row]))
    steps, first = int(feed.steps[at]), int(feed.last_epoch[at])
    if not steps:
        return feed.lr.new_zeros(())
    own = (*(each[0] for each in work.own(np.array([row]), 0)), *work.common)
    losses = list(_moved(work, 0, layers, feed, feed.indices[at, :steps], feed.masks[at, :steps], own))
    weights = feed.weights[at, first:steps]
    return torch.dot(torch.stack(losses[first:]), weights) / weights.sum()


def train_clients(work: Work, rows: np.ndarray, y: Tensor, values: Tensor) -> None:
    """Trains clients, most steps first. Writes models and mean losses of the last epoch into y [K, P] and values [K].

    All clients take as many steps as the first one. Steps beyond a client's own number do not count.
    """
    doubles = width(len(rows)) - len(rows)
    rows = np.concatenate([rows[:1].repeat(doubles), rows])
    start = work.starts(rows)
    layers = [
        start[:, begin : begin + shape.numel()].reshape(-1, *shape).clone(memory_format=torch.contiguous_format)
        for begin, shape in work.family.layout.values()
    ]
    feed, at = _feed(work, rows)
    most, places = int(feed.steps[at[0]]), torch.from_numpy(at).to(work.family.device)
    indices, masks, weights = (part[places, :most] for part in (feed.indices, feed.masks, feed.weights))
    own = (*work.own(rows, 0), *work.common)
    active = (feed.steps[at, None] > np.arange(most + 1)).sum(0).tolist()  # clients with more than 0, 1, ... steps

    def keep(first: int, end: int) -> None:
        """Copies the models of clients that have done all their steps into y."""
        if (first := max(first, doubles)) < end:
            done = torch.cat([layer[first:end].flatten(1) for layer in layers], 1)
            y.index_copy_(0, torch.from_numpy(rows[first:end]).to(y.device), done)

    keep(active[0], len(rows))
    steps = _moved(work, len(rows), layers, feed, indices.transpose(0, 1), masks.transpose(0, 1), own)
    losses = [weights.new_zeros(len(rows))]
    for t, loss in enumerate(steps):
        losses.append(loss)
        keep(active[t + 1], active[t])
    counted = torch.stack(losses, 1)[:, 1:].where(weights > 0, 0)
    values[rows[doubles:]] = ((weights * counted).sum(1) / weights.sum(1).clamp_min(1))[doubles:]


def _moved(
    work: Work, models: int, layers: Layers, feed: "_Feed", indices: Tensor, masks: Tensor, own: tuple[Tensor, ...]
) -> Iterator[Tensor]:
    """Takes local steps of the layers of `clients` models side by side (0: of one) and yields each step's loss.

    Masked examples fill up a short minibatch, so that all have one shape and need one graph. `indices` and `masks` are
    [T, b] or [T, A, b]. `own` holds the clients' own tensors for every step, and the common ones.
    """
    optimizer, ready, step = work.make_optimizer(), is_ready(work, models), _compiled(work, models)
    slots = [[torch.zeros_like(layer) for layer in layers] for _ in range(optimizer.slots)]
    for t, batch in enumerate(_batches(work, indices, masks)):
        with nullcontext() if ready or t else deferred():
            loss = step(layers, slots, feed.lr, feed.times[t], *batch, *own)
        yield loss


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
    return kept_graph(work.family, _key(work, models), step, layer_by_layer=True)


def _key(work: Work, models: int) -> tuple[Any, ...]:
    added = work.penalty, work.perturb, work.correct
    shapes = tuple(t.shape[1:] for t in work.per_client), tuple(t.shape for t in work.common)
    how = work.make_optimizer(), work.local.batch_size, work.offsets is not None
    return *how, models, added, shapes, work.family.active_part


def _step(work: Work, *, stacked: bool) -> Step:
    """The step of this kind of work, for one model or for several side by side. It keeps no reference to the work."""
    gradient, optimizer, common = _gradient(work), work.make_optimizer(), len(work.common)
    if stacked:
        gradient = side_by_side(gradient, common, randomness="error")

    def step(layers: Layers, slots: list[Layers], lr: Tensor, t: Tensor, *batch: Tensor) -> Tensor:
        value: Tensor
        gradients, value = gradient(layers, *batch)
        for i, (layer, g) in enumerate(zip(layers, gradients, strict=True)):
            optimizer.step(layer, g, tuple(slot[i] for slot in slots), lr, t)
        return value

    return step


def _gradient(work: Work) -> Callable[..., Any]:
    """A function (layers, inputs, targets, mask, *own) -> the gradients that one model's layers follow, and the
    loss.
    """
    family, penalty, perturb, correct = work.family, work.penalty, work.perturb, work.correct
    names, first = list(family.layout), int(work.offsets is not None)
    sizes = [shape.numel() for _, shape in family.layout.values()]

    def loss(layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor, *own: Tensor) -> Tensor:
        batch = Batch(inputs, targets, mask, *own[:first])
        logits = family.forward(dict(zip(names, layers, strict=True)), inputs)
        value = batch.mean(losses(logits, targets, batch.offsets))
        if penalty is not None:
            for layer, mine in zip(layers, parted(own[first:], sizes), strict=True):
                value = value + penalty(layer.reshape(-1), *mine)
        return value

    of_layers = grad_and_value(loss)

    def gradient(layers: Layers, *batch: Tensor) -> tuple[Layers, Tensor]:
        gradients, value = of_layers(layers, *batch)
        own = batch[3 + first :]
        if perturb is not None:
            moves = torch.split(perturb(torch.cat([g.reshape(-1) for g in gradients]), *own), sizes)
            there = [layer + move.view(layer.shape) for layer, move in zip(layers, moves, strict=True)]
            gradients, _ = of_layers(there, *batch)
        if correct is not None:
            pairs = zip(gradients, parted(own, sizes), strict=True)
            gradients = [correct(g.reshape(-1), *mine).view(g.shape) for g, mine in pairs]
        return gradients, value

    return gradient
