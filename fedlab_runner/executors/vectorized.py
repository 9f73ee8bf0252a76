"""Trains all clients of a chunk in one call: vmap over their models, data and optimisers."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedlab_runner.core.additions import lasts, side_by_side
from fedlab_runner.core.additions_trial import obstacle
from fedlab_runner.core.aligned import room_for_rows
from fedlab_runner.core.executor import OfOne, Parallel
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.optimizer import zero_slots
from fedlab_runner.core.work import Gradient, Work, gradient_of
from fedlab_runner.executors._chunks import Chunk, ChunkedExecutor, one_by_one
from fedlab_runner.executors.compiled import in_layers, is_ready, train_clients, width
from fedlab_runner.executors.graphs import kept_graph
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least

MAX_PLAIN_PARAMS = 2**16  # of a model, up to which autograd outside of vmap is faster
_GRAPH = "graph"  # key in a cohort's notes
DEFAULT_CHUNK_SIZE = 10  # clients, if a size is needed and chunk_size is null


@dataclass(frozen=True)
class Vectorized(ChunkedExecutor):
    """Trains up to `chunk_size` clients at a time (null: the whole cohort). `compile` compiles the step with
    torch.compile.

    It sorts clients by their number of steps, so that those that still train are a shrinking block at the front of
    their chunk. Masked examples pad a short minibatch. If the model has batch norm, which would see padding, it instead
    groups clients by the size of their minibatch.
    """

    chunk_size: int | None
    compile: bool

    def __post_init__(self) -> None:
        at_least(1, chunk_size=self.chunk_size)

    def check(self, family: ModelFamily) -> None:
        _refuse(family.alone)

    def parallel(self, clients: int) -> Parallel:
        side = min(self.chunk_size or clients, clients)
        apart = side if self.compile or side < clients else 0
        return Parallel(side, 2 * side, apart)  # vmap keeps activations and their gradients until the step ends

    def chunks(self, work: Work) -> list[Chunk]:
        _refuse(obstacle(work))
        return [
            Chunk(chunk, frozen)
            for frozen, rows in work.groups()
            for chunk in np.array_split(rows, -(-len(rows) // (self.chunk_size or len(rows))))
        ]

    def train_chunk(self, work: Work, chunk: Chunk, y: Tensor, losses: Tensor) -> None:
        work.family.mode(True, frozen_norm=chunk.frozen_norm)
        work.seed_globals(int(chunk.rows[0]))
        if self.compile and in_layers(work):
            train_clients(work, chunk.rows, y, losses)
        else:
            # The whole cohort trains in y, in the order of the chunk. Others do not: the alignment of a row of y, and
            # so the last bits, would depend on the row.
            count = len(chunk.rows)
            models = y if count == len(y) else y.new_empty(count, y.shape[1])
            losses[chunk.rows] = _train_clients(work, chunk.rows, models, self._step(work), self.compile)
            if models is not y:
                y[chunk.rows] = models
            elif (chunk.rows != np.arange(count)).any():
                y[chunk.rows] = models.clone()

    def compiling_chunks(self, work: Work) -> list[int]:
        if not self.compile:
            return []
        first: dict[int, int] = {}
        for number, (rows, _) in enumerate(self.chunks(work)):
            if not is_ready(work, len(rows)):
                first.setdefault(width(len(rows)), number)
        return list(first.values())

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        grouped = family.device.type == "cpu" and family.has_convolution  # vmap's convolutions: 1.6 times as slow
        if grouped or family.alone:
            return one_by_one(function, *rows)
        n = len(rows[0])
        size = self.chunk_size or (DEFAULT_CHUNK_SIZE if fill else n)
        if fill and n < size:
            rows = tuple(_filled(t, size) for t in rows)
        parts = []
        for begin in range(0, n, size):
            first = max(0, min(begin, n - size)) if fill else begin  # the last call repeats rows of the one before it
            results = vmap(function, randomness="different")(*(t[first : first + size] for t in rows))
            parts.append([t[begin - first :] for t in results])
        return [torch.cat(column)[:n] for column in zip(*parts, strict=True)]

    def _step(self, work: Work) -> Gradient:
        """(params [A, P], buffers [A, B], batch, *own) -> gradient [A, P], (loss [A], buffers [A, B])."""
        every = partial(side_by_side, common=len(work.common))
        small = work.family.num_params <= MAX_PLAIN_PARAMS
        if not self.compile and small and work.family.autocast is None:  # which overlooks vmapped convolutions here
            return work.followed(gradient_of(every(work.objective())), every)

        def step() -> Gradient:
            return every(work.followed(work.gradient(partial(grad, has_aux=True))))

        if not self.compile:
            return step()
        added = work.loss, work.penalty, work.perturb, work.correct
        if not all(map(lasts, added)):
            return kept_graph(work.notes, _GRAPH, step)
        how = work.frozen, work.offsets is None, work.local.clip_norm, len(work.common), work.family.active_part
        return kept_graph(work.family.compiled, ("side by side", *added, *how), step)


def _refuse(obstacle: str | None) -> None:
    """Raises UserError for what hinders models from training side by side."""
    if obstacle:
        raise UserError(f"models of this kind cannot train side by side ({obstacle}): take executor=loop")


def _filled(rows: Tensor, size: int) -> Tensor:
    """Tensors [n, ...] and copies of the last one [size, ...], each as aligned as a tensor of its own."""
    room = room_for_rows(size, rows[0])
    room[: len(rows)], room[len(rows) :] = rows, rows[-1]
    return room


def _train_clients(work: Work, chunk: np.ndarray, models: Tensor, step: Gradient, full_width: bool) -> Tensor:
    """Writes the clients' models into `models` [k, D], and gives their mean losses of the last epoch [k]."""
    family, client_data = work.family, work.client_data
    plan, optimizer = work.plan(chunk), work.make_optimizer()
    models.copy_(work.starts(chunk))
    params, buffers = models[:, : family.num_params], models[:, family.num_params :].clone()
    slots, weighted_loss = zero_slots(optimizer, params), params.new_zeros(len(chunk))
    in_last_epoch = np.arange(plan.sizes.shape[1]) >= plan.last_epoch[:, None]
    sizes = torch.from_numpy(plan.sizes).to(family.device)
    weights = torch.from_numpy(plan.sizes * in_last_epoch).to(family.device, family.dtype)
    places = torch.arange(work.local.batch_size, device=family.device)
    fixed = work.own(chunk, 0) if work.per_step is None else None
    for t in range(plan.sizes.shape[1]):
        for rows, most in blocks(plan.sizes[:, t], family.mixes):
            if full_width and not family.mixes:  # constant shapes spare the compiler
                most = work.local.batch_size
            index = plan.indices[rows, t, :most]
            mask = (places[:most] < sizes[rows, t, None]).to(family.dtype)
            batch = family.batch(*client_data.minibatch(index), mask)
            block = params[rows]
            own = work.own(chunk[rows], t) if fixed is None else tuple(o[rows] for o in fixed)
            g, (loss, updated) = step(block, buffers[rows], *batch[:3], *own, *work.common)
            block_slots = tuple(s[rows] for s in slots)
            optimizer.step(block, g, block_slots, work.lr, t)
            if not isinstance(rows, slice):  # an index makes copies, a slice makes views
                params[rows] = block
                for s, moved in zip(slots, block_slots, strict=True):
                    s[rows] = moved
            buffers[rows] = updated
            weighted_loss[rows] += loss * weights[rows, t]
            del g, updated  # before the next step makes others
    models[:, family.num_params :] = buffers
    return weighted_loss / weights.sum(1).clamp_min(1)


def blocks(sizes: np.ndarray, by_size: bool) -> Iterator[tuple[slice | np.ndarray, int]]:
    """Groups of clients that take a step together, each with the size of its padded minibatch.

    `sizes` [k] holds the clients' minibatch sizes, 0 for a client that is done. With `by_size` each size has a group.
    """
    sizes = sizes[: int((sizes > 0).sum())]
    if not by_size or (sizes == sizes[:1]).all():
        yield slice(0, len(sizes)), int(sizes.max())
    else:
        for size in np.unique(sizes).tolist():
            yield np.flatnonzero(sizes == size), size
