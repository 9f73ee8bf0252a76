"""One client after another: the reference that every other executor must agree with."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.executors.work import Gradient, Objective, OfOne, Work, one_by_one
from fedlab_runner.optimizer import zero_slots
from fedlab_runner.task import Task


@dataclass(frozen=True)
class Loop:
    """Plain autograd, one client and one minibatch at a time; `compile` compiles the objective with torch.compile."""

    compile: bool

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        y = torch.empty(len(work.ids), work.task.size, device=work.task.device, dtype=work.task.dtype)
        losses = y.new_zeros(len(work.ids))
        with torch.random.fork_rng(devices=[work.task.device] if work.task.device.type == "cuda" else []):
            for frozen, rows in work.groups():
                work.task.mode(True, frozen_norm=frozen)
                for row in rows.tolist():
                    work.seed_torch(row)
                    y[row], losses[row] = self._train_one(work, row)
        return y, losses

    def each(self, task: Task, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return one_by_one(function, *rows)

    def _train_one(self, work: Work, row: int) -> tuple[Tensor, Tensor]:
        task, population, rows = work.task, work.population, np.array([row])
        gradient = work.followed(_gradient(torch.compile(work.objective()) if self.compile else work.objective()))
        plan, optimizer = work.plan(rows), work.local.make_optimizer()
        (params,), (buffers,) = work.start_of(rows)
        slots, weighted_loss, seen = zero_slots(optimizer, params), params.new_zeros(()), 0
        for t in range(int(work.num_steps[row])):
            size = int(plan.sizes[0, t])
            index = plan.indices[0, t, :size]
            batch = task.batch(population.inputs[index], population.targets[index], params.new_ones(size))
            g, (loss, buffers) = gradient(params, buffers, *batch[:3], *(o[0] for o in work.own(rows, t)))
            optimizer.step(params, g, slots, work.lr, t)
            if t >= plan.last_epoch[0]:
                weighted_loss, seen = weighted_loss + loss * size, seen + size
        return torch.cat([params, buffers]), weighted_loss / max(seen, 1)


def _gradient(objective: Objective) -> Gradient:
    """Of the objective by its parameters, with what it gives beside its value."""

    def gradient(params: Tensor, *rest: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        leaf = params.detach().requires_grad_()
        value, aux = objective(leaf, *rest)
        (g,) = torch.autograd.grad(value, leaf)
        return g, aux

    return gradient
