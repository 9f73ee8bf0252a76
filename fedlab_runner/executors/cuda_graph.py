"""Records a local step on a GPU once as a CUDA graph, and then replays it in one launch.

A small model's step has some hundred kernels of a few microseconds. Launching a kernel takes as long as running it.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from fedlab_runner.core.additions import lasts, side_by_side
from fedlab_runner.core.additions_trial import draws
from fedlab_runner.core.executor import Parallel
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.optimizer import Optimizer, zero_slots
from fedlab_runner.core.work import Gradient, Work
from fedlab_runner.executors._chunks import Chunk
from fedlab_runner.executors.compiled import width
from fedlab_runner.executors.graphs import graph_of
from fedlab_runner.executors.vectorized import Vectorized, blocks
from fedlab_runner.utils.errors import UserError

WARM_UP_STEPS = 3  # before the recording, in which libraries choose their kernels


@dataclass(frozen=True)
class CudaGraph(Vectorized):
    """Trains as `vectorized` does, up to `chunk_size` clients side by side (null: the whole cohort; 1: one after
    another), and replays a recorded step instead of launching its kernels one by one.

    It keeps a recorded step for later rounds, unless the step freezes tensors or contains a closure of the algorithm.
    With batch norm it must not pad a minibatch that is not full, and launches such a step kernel by kernel. It trains a
    model with dropout as `vectorized` does.
    """

    def check(self, family: ModelFamily) -> None:
        super().check(family)
        if family.device.type != "cuda":
            raise UserError(
                f"executor=cuda_graph needs a GPU (device=cuda), got {family.device}: take loop, vectorized or "
                "processes"
            )

    def parallel(self, clients: int) -> Parallel:
        found = super().parallel(clients)
        return found._replace(apart=found.clients)

    def train_chunk(self, work: Work, chunk: Chunk, y: Tensor, losses: Tensor) -> None:
        if draws(work) or not work.num_steps[chunk.rows].any():
            super().train_chunk(work, chunk, y, losses)
            return
        work.family.mode(True, frozen_norm=chunk.frozen_norm)
        step = self._recorded(work, chunk)
        rows = np.concatenate([chunk.rows[:1].repeat(step.models - len(chunk.rows)), chunk.rows])
        found = step.train(work, rows)
        y[chunk.rows], losses[chunk.rows] = (each[-len(chunk.rows) :] for each in found)

    def _recorded(self, work: Work, chunk: Chunk) -> "RecordedStep":
        """The recorded step for a chunk. Records a new step."""
        added = work.loss, work.penalty, work.perturb, work.correct, work.per_step
        notes = work.client_data.notes if all(map(lasts, added)) and not work.frozen else work.notes
        optimizer, models, frozen = work.make_optimizer(), width(len(chunk.rows)), chunk.frozen_norm
        how = optimizer, work.local.batch_size, work.local.clip_norm, work.offsets is not None
        shapes = tuple(t.shape[1:] for t in work.per_client), tuple(t.shape for t in work.common)
        key = work.family, work.family.active_part, models, frozen, self.compile, *how, *added, *shapes
        if key not in notes:
            gradient = self._of_all(work.select(chunk.rows[:1]))  # one row: a kept step keeps its work in memory
            notes[key] = RecordedStep(work, models, gradient, padded=not work.family.mixes)
        recorded: RecordedStep = notes[key]
        return recorded

    def _of_all(self, work: Work) -> Gradient:
        one = work.followed(work.gradient(functools.partial(grad, has_aux=True)))
        step = side_by_side(one, len(work.common), randomness="error")
        return graph_of(step) if self.compile else step


class RecordedStep:
    """One local step of A models. Its inputs and outputs have fixed places on the device.

    With `padded`, masked examples fill up minibatches that are not full.
    """

    def __init__(self, work: Work, models: int, gradient: Gradient, *, padded: bool) -> None:
        rows, family, device = np.zeros(models, dtype=np.int64), work.family, work.family.device
        self.models, self._padded, self._gradient = models, padded, gradient
        self._family, self._client_data = family, work.client_data
        self._optimizer: Optimizer = work.make_optimizer()
        self._params, self._buffers = (part.contiguous() for part in work.start_of(rows))
        self._slots = zero_slots(self._optimizer, self._params)
        self._index = torch.zeros(models, work.local.batch_size, dtype=torch.int64, device=device)
        self._sizes = torch.full((models, 1), work.local.batch_size, dtype=torch.int64, device=device)
        self._places = torch.arange(work.local.batch_size, device=device)
        self._own = tuple(each.clone(memory_format=torch.contiguous_format) for each in work.own(rows, 0))
        self._common = tuple(each.clone(memory_format=torch.contiguous_format) for each in work.common)
        self._lr, self._t = (torch.zeros((), dtype=dtype, device=device) for dtype in (family.dtype, torch.float64))
        self._loss = torch.zeros(models, dtype=family.dtype, device=device)
        self._replay = record(self._launch, device)

    def train(self, work: Work, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Models [A, D] and mean losses of the last epoch [A] of clients, most steps first.

        All clients take as many steps as the first one. Steps beyond a client's own number do not count.
        """
        family, plan = self._family, work.plan(rows)
        self._begin(work, rows)
        sizes = torch.from_numpy(plan.sizes).to(family.device)
        masked = sizes.where(sizes > 0, work.local.batch_size).unsqueeze(2)  # a mean needs an example
        in_last_epoch = np.arange(plan.sizes.shape[1]) >= plan.last_epoch[:, None]
        weights = torch.from_numpy(plan.sizes * in_last_epoch).to(family.device, family.dtype)
        y = torch.cat([self._params, self._buffers], 1)
        losses = [torch.zeros_like(self._loss)]
        for t in range(plan.sizes.shape[1]):
            active = int((plan.sizes[:, t] > 0).sum())
            self._move(work, rows, t, plan.indices[:, t], masked[:, t], plan.sizes[:active, t])
            losses.append(self._loss.clone())
            ended = slice(int((plan.sizes[:, t + 1 : t + 2] > 0).sum()), active)
            if ended.start < ended.stop:
                y[ended] = torch.cat([self._params[ended], self._buffers[ended]], 1)
        counted = torch.stack(losses, 1)[:, 1:].where(weights > 0, 0)
        return y, (weights * counted).sum(1) / weights.sum(1).clamp_min(1)

    def _begin(self, work: Work, rows: np.ndarray) -> None:
        for kept, new in zip((self._params, self._buffers), work.start_of(rows), strict=True):
            kept.copy_(new)
        for slot in self._slots:
            slot.zero_()
        for kept, new in zip(self._common, work.common, strict=True):
            kept.copy_(new)
        self._lr.fill_(work.lr)
        self._t.zero_()

    def _move(self, work: Work, rows: np.ndarray, t: int, index: Tensor, sizes: Tensor, active: np.ndarray) -> None:
        """One step of the clients that still train. `active` [k] holds the sizes of their minibatches."""
        if t == 0 or work.per_step is not None:
            for kept, new in zip(self._own, work.own(rows, t), strict=True):
                kept.copy_(new)
        if not self._padded and (active != work.local.batch_size).any():
            self._launch_by_size(index, active)
            return
        self._index.copy_(index)
        self._sizes.copy_(sizes)
        self._replay()

    def _launch(self) -> None:
        """The step to record."""
        self._step(slice(None), self._index, (self._places < self._sizes).to(self._family.dtype))
        self._t += 1

    def _launch_by_size(self, index: Tensor, sizes: np.ndarray) -> None:
        """The step for batch norm, which would see padding. Clients with equal minibatch sizes train together."""
        for rows, most in blocks(sizes, by_size=True):
            part = index[rows, :most]
            self._step(rows, part, torch.ones_like(part, dtype=self._family.dtype))
        self._t += 1

    def _step(self, rows: slice | np.ndarray, index: Tensor, mask: Tensor) -> None:
        params, buffers = self._params[rows], self._buffers[rows]
        slots, own = (tuple(each[rows] for each in some) for some in (self._slots, self._own))
        batch = self._family.batch(*self._client_data.minibatch(index), mask)
        g, (loss, updated) = self._gradient(params, buffers, *batch[:3], *own, *self._common)
        self._optimizer.step(params, g, slots, self._lr, self._t)
        self._loss[rows], self._buffers[rows] = loss, updated
        if not isinstance(rows, slice):  # indexing makes copies; a slice makes views
            self._params[rows] = params
            for slot, moved in zip(self._slots, slots, strict=True):
                slot[rows] = moved


def record(launch: Callable[[], None], device: torch.device) -> Callable[[], Any]:
    """Records the GPU work of `launch` and returns a function that repeats this work in one launch."""
    with torch.cuda.device(device):
        here, aside, graph = torch.cuda.current_stream(), _aside(torch.cuda.current_device()), torch.cuda.CUDAGraph()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP_STEPS):
                launch()
        here.wait_stream(aside)
        with refusing(), torch.cuda.graph(graph, stream=aside):
            launch()
    return graph.replay


@functools.cache
def _aside(gpu: int) -> torch.cuda.Stream:
    """The stream of a GPU on which all steps are recorded. cuBLAS keeps a workspace, of 32 MiB on a Hopper, for each
    stream that it has ever seen.
    """
    return torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]  # torch has no types for it


@contextmanager
def refusing() -> Iterator[None]:
    """Turns the error of a step that cannot be recorded (it waits for the GPU or lacks memory) into a UserError."""
    try:
        yield
    except RuntimeError as error:
        why = (str(error).splitlines() or [repr(error)])[0]
        raise UserError(f"executor=cuda_graph cannot record this work: {why}: take executor=vectorized") from error
