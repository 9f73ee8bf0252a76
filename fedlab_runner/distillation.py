"""Mutual learning (Zhang et al., CVPR 2018): models teach each other on the examples of one client."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.executors.work import clip_rows
from fedlab_runner.federation import Federation
from fedlab_runner.optimizer import zero_slots
from fedlab_runner.rng import Purpose, torch_seed
from fedlab_runner.supervision import losses
from fedlab_runner.task import Batch, Model, Task

# (logits [M, b, C] of all models, students first; minibatch) -> the loss of each student, which has no gradient with
# respect to the logits of any other model
Objective = Callable[[Tensor, Batch], Tensor]


class Learners(NamedTuple):
    """Models of one architecture."""

    task: Task
    models: Tensor  # [k, D]


def mutual_learning(
    fed: Federation,
    client: int,
    students: Sequence[Learners],
    epochs: int,
    objective: Objective,
    teachers: Sequence[Learners] = (),
) -> list[Tensor]:
    """The students' models after `epochs` over the examples of `client`, each with an optimiser of its own, the
    clients'; teachers stay as they are.

    Every model sees a minibatch once, before any of them moves (a Jacobi step), and models of one architecture see it
    in one call.
    """
    split = [s.task.num_params for s in students]
    params = [s.models[:, :p].clone() for s, p in zip(students, split, strict=True)]
    buffers = [s.models[:, p:].clone() for s, p in zip(students, split, strict=True)]
    optimizer, clip = fed.local.make_optimizer(), fed.local.clip_norm
    slots = [zero_slots(optimizer, w) for w in params]
    tasks = [s.task for s in (*students, *teachers)]
    device = fed.task.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(torch_seed(fed.seed, Purpose.DISTILLATION_DROPOUT, fed.round, client))
        for t, batch in enumerate(client_batches(fed, client, epochs, tasks)):
            with torch.no_grad():
                taught = [
                    _logits(fed, s.task, s.models[:, : s.task.num_params], s.models[:, s.task.num_params :], batch)[0]
                    for s in teachers
                ]
            leaves = [w.detach().requires_grad_() for w in params]
            seen = [_logits(fed, s.task, leaf, b, batch) for s, leaf, b in zip(students, leaves, buffers, strict=True)]
            loss = objective(torch.cat([*(logits for logits, _ in seen), *taught]), batch)
            for i, g in enumerate(torch.autograd.grad(loss.sum(), leaves)):
                g = g if clip is None else clip_rows(g, clip)
                optimizer.step(params[i], g, slots[i], fed.lr, t)
            buffers = [updated.detach() for _, updated in seen]
            flops = sum(len(s.models) * s.task.flops(batch.inputs).step for s in students)
            flops += sum(len(s.models) * s.task.flops(batch.inputs).forward for s in teachers)
            fed.count_server_flops(len(batch.targets) * flops)
    learnt = [torch.cat(pair, 1) for pair in zip(params, buffers, strict=True)]
    return learnt if fed.guard.learnt(client, learnt) else [s.models for s in students]


def _logits(fed: Federation, task: Task, params: Tensor, buffers: Tensor, batch: Batch) -> list[Tensor]:
    """Logits [k, b, C] of models in training mode, and their buffers [k, B] after it."""
    task.mode(True, frozen_norm=len(batch.targets) == 1)

    def one(params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        model = Model(task, params, buffers)
        return model(batch.inputs), model.buffers

    return fed.executor.each(task, one, params, buffers)


def client_batches(fed: Federation, client: int, epochs: int, tasks: Sequence[Task]) -> Iterator[Batch]:
    """Minibatches of one client's examples for all the tasks, in an order of their own for this round."""
    population, task, ids = fed.population, fed.task, np.array([client])
    if not epochs:
        return
    plan = population.plan(
        ids,
        replace(fed.local, epochs=epochs, steps=None),
        seed=fed.seed,
        round=fed.round,
        drop_single=any(task.has_batch_norm for task in tasks),
        purpose=Purpose.DISTILLATION,
    )
    offsets = population.offsets(task.supervision, ids, task.num_classes)
    for t, size in enumerate(plan.sizes[0].tolist()):
        rows = plan.indices[0, t, :size]
        mask = torch.ones(size, dtype=task.dtype, device=task.device)
        batch = task.batch(*population.examples(rows), mask)
        yield batch._replace(offsets=None if offsets is None else offsets[0].to(task.dtype))


def teacher_weights(sizes: Tensor) -> Tensor:
    """Phi_q / sum of Phi_u over u != n (DFML, Eq 3): how much model q of sizes [M] teaches model n [M, M].

    The diagonal is 0, each row sums to 1, or to 0 for a model that is alone.
    """
    others = sizes.expand(len(sizes), -1) * (1 - torch.eye(len(sizes), dtype=sizes.dtype, device=sizes.device))
    return others / others.sum(1, keepdim=True).clamp_min(torch.finfo(sizes.dtype).tiny)


def mutual_losses(
    logits: Tensor, batch: Batch, weights: Tensor, gamma: float, alpha: float, weigh_samples: bool = False
) -> Tensor:
    """gamma L_supervision + alpha sum_q w_nq KL(p_q || p_n) of each student n, means over the minibatch [k].

    logits [M, b, C], students first; weights [k, M] of the teachers, whose predictions are constants. With
    `weigh_samples` each divergence counts by 1 - exp(-CE_n / CE_q) of the sample (WSL, Zhou et al., ICLR 2021).
    """
    k = len(weights)
    of_students, log_p = logits[:k], F.log_softmax(logits[:k], -1)
    targets = batch.targets.expand(len(logits), -1)
    loss = gamma * losses(of_students, targets[:k], batch.offsets)
    if alpha:
        q = F.log_softmax(logits.detach(), -1)
        if weigh_samples:
            ce = -q.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # [M, b]
            ratio = 1 - torch.exp(-ce[:k].unsqueeze(1) / (ce + 1e-7))  # [k, M, b]
            by_sample = weights.unsqueeze(-1) * ratio
            target = torch.einsum("kqb,qbc->kbc", by_sample, q.exp())
            entropy = torch.einsum("kqb,qb->kb", by_sample, (q.exp() * q).sum(-1))
        else:  # a mean of divergences from constants is one from their mean, up to a constant
            target = torch.einsum("kq,qbc->kbc", weights, q.exp())
            entropy = weights @ (q.exp() * q).sum(-1)
        loss = loss + alpha * (entropy - (target * log_p).sum(-1))
    return loss.mean(1)
