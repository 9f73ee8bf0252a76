"""Mutual learning (Zhang et al., CVPR 2018): models teach each other on the examples of one client."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.pupils import MIN_SHARED_FLOPS, Group, Step, pupils
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.global_rng import own_generators
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch, ModelFamily
from fedlab_runner.core.rng import Purpose, torch_seed
from fedlab_runner.executors._autotune.measure import FLOPS_A_SECOND
from fedlab_runner.executors._fork.buffers import shared_zeros
from fedlab_runner.executors._fork.lockstep import SharedRows, in_step

# (logits [M, b, C] of all models, students first; minibatch) -> each student's loss, without a gradient with respect to
# another model's logits
Objective = Callable[[Tensor, Batch], Tensor]
Rows = Sequence[Tensor]  # for each group of models, indices of some of its models
Whole = Callable[[Tensor, Tensor], Tensor]  # (places of some models among all, their logits) -> the logits of all
MIN_SHARED_SECONDS = 0.3  # of mutual learning, from which on processes share it; forking takes less than a tenth


class Learners(NamedTuple):
    """Models of one architecture."""

    family: ModelFamily
    models: Tensor  # [k, D]


def mutual_learning(
    fed: Federation,
    client: int,
    students: Sequence[Learners],
    epochs: int,
    objective: Objective,
    teachers: Sequence[Learners] = (),
) -> list[Tensor]:
    """The students' models after `epochs` epochs over the examples of `client`; teachers stay as they are.

    Each student has an optimiser of its own, of the clients' kind. Every model sees a minibatch once, before any model
    moves (a Jacobi step). Threads share the models (`shared.pupils`) or, if these are small and there is work of more
    than `MIN_SHARED_SECONDS`, the executor's processes. The key `nonfinite` says what happens to students that are not
    finite.
    """
    groups, costs = [*students, *teachers], _costs(fed, students, teachers)
    operations = _examples_seen(fed, client, groups, epochs) * sum(costs)
    fed.metrics.count_server_flops(operations)
    learn = partial(_learn, fed, client, students, epochs, objective, teachers)
    parts = _parts(fed, groups, costs, operations, sum(len(s.models) for s in students))
    learnt = _shared(fed, students, groups, parts, learn) if len(parts) > 1 else None
    if learnt is None:
        learnt = learn([torch.arange(len(s.models)) for s in groups], lambda rows, logits: logits)
    return learnt if fed.guard.learnt(client, learnt) else [s.models for s in students]


def _shared(
    fed: Federation,
    students: Sequence[Learners],
    groups: Sequence[Learners],
    parts: Sequence[Rows],
    learn: Callable[[Rows, Whole], list[Tensor]],
) -> list[Tensor] | None:
    """The students' models, learnt in processes that share the models; None if a process has died."""
    learnt = [shared_zeros(s.models.shape, s.models.dtype) for s in students]

    def run(part: int, shared: SharedRows) -> None:
        def whole(rows: Tensor, logits: Tensor) -> Tensor:
            return shared.complete(rows, logits).index_copy(0, rows, logits)

        for room, rows, models in zip(learnt, parts[part], learn(parts[part], whole), strict=False):
            room[rows] = models

    shape = (sum(len(s.models) for s in groups), fed.local.batch_size, fed.family.num_classes)
    return learnt if in_step(len(parts), shape, fed.family.dtype, run) else None


def _costs(fed: Federation, students: Sequence[Learners], teachers: Sequence[Learners]) -> list[int]:
    """The floating-point operations of each model for one example; students come first."""
    example = fed.family.normalize(fed.client_data.inputs[:1], fed.family.dtype)
    learning = [s.family.flops(example).step for s in students for _ in s.models]
    return learning + [s.family.flops(example).forward for s in teachers for _ in s.models]


def _examples_seen(fed: Federation, client: int, groups: Sequence[Learners], epochs: int) -> int:
    """How many examples of a client each model sees, with repetitions."""
    if not epochs:
        return 0
    local, drop_single = replace(fed.local, epochs=epochs, steps=None), any(s.family.has_batch_norm for s in groups)
    return int(fed.client_data.examples_seen(np.array([client]), local, drop_single)[0])


def _parts(
    fed: Federation, groups: Sequence[Learners], costs: Sequence[int], operations: int, students: int
) -> list[Rows]:
    """The rows of each group that each process takes: even shares of the `costs`, with at least one student.

    One process takes all rows if the work of so many `operations` is short, on a GPU, if dropout draws from one stream,
    or if its threads share the models, which takes less than processes do.
    """
    count = min(fed.executor.num_processes(), students)
    alone = fed.family.device.type != "cpu" or any(s.family.draws for s in groups)
    threads = torch.get_num_threads() >= count and fed.local.batch_size * max(costs) >= MIN_SHARED_FLOPS
    if count < 2 or alone or threads or operations < MIN_SHARED_SECONDS * FLOPS_A_SECOND:
        return [[torch.arange(len(s.models)) for s in groups]]
    places = [(g, row) for g, s in enumerate(groups) for row in range(len(s.models))]
    rows: list[list[list[int]]] = [[[] for _ in groups] for _ in range(count)]
    loads = [0] * count
    for model in sorted(range(len(places)), key=lambda model: (model >= students, -costs[model])):
        part, (group, row) = loads.index(min(loads)), places[model]
        rows[part][group].append(row)
        loads[part] += costs[model]
    return [[torch.tensor(sorted(some), dtype=torch.int64) for some in part] for part in rows]


def _learn(
    fed: Federation,
    client: int,
    students: Sequence[Learners],
    epochs: int,
    objective: Objective,
    teachers: Sequence[Learners],
    own: Rows,
    whole: Whole,
) -> list[Tensor]:
    """The learnt models of the students in `own`, which holds rows of each group of students and then of teachers.

    `whole` completes their logits with those of the models in other processes.
    """
    chosen = [
        Group(s.family, s.models[rows], learn=g < len(students))
        for g, (s, rows) in enumerate(zip((*students, *teachers), own, strict=True))
    ]
    first = itertools.accumulate((len(s.models) for s in (*students, *teachers)), initial=0)
    places = torch.cat([begin + rows for begin, rows in zip(first, own, strict=False)])
    movable = places[: sum(map(len, own[: len(students)]))]
    families = [group.family for group in chosen]
    step, device = Step(fed.local.make_optimizer(), fed.local.clip_norm, fed.lr), fed.family.device
    own_dropout = own_generators(device, torch_seed(fed.seed, Purpose.DISTILLATION_DROPOUT, fed.round, client))
    with own_dropout, pupils(chosen, step, fed.executor) as its:
        for t, batch in enumerate(client_batches(fed, client, epochs, families)):
            logits = its.logits(batch).requires_grad_()
            loss = objective(whole(places, logits), batch)[movable]
            (gradient,) = torch.autograd.grad(loss.sum(), logits, materialize_grads=True)
            its.step(gradient[: len(movable)], t)
        return its.learnt()


def client_batches(fed: Federation, client: int, epochs: int, families: Sequence[ModelFamily]) -> Iterator[Batch]:
    """Minibatches of one client's examples, for models of all families, in an order drawn for mutual learning."""
    client_data, family, ids = fed.client_data, fed.family, np.array([client])
    if not epochs:
        return
    plan = client_data.plan(
        ids,
        replace(fed.local, epochs=epochs, steps=None),
        seed=fed.seed,
        round=fed.round,
        drop_single=any(family.has_batch_norm for family in families),
        purpose=Purpose.DISTILLATION,
    )
    offsets = client_data.offsets(family.loss_function, ids, family.num_classes)
    for t, size in enumerate(plan.sizes[0].tolist()):
        rows = plan.indices[0, t, :size]
        mask = torch.ones(size, dtype=family.dtype, device=family.device)
        batch = family.batch(*client_data.minibatch(rows), mask)
        yield batch._replace(offsets=None if offsets is None else offsets[0].to(family.dtype))


def teacher_weights(sizes: Tensor) -> Tensor:
    """How much model q (column) teaches model n (row) [M, M]: Phi_q / sum of Phi_u over u != n (DFML, Eq 3), for sizes
    Phi [M].

    The diagonal is 0; a row sums to 1, or to 0 if there is only one model.
    """
    others = sizes.expand(len(sizes), -1) * (1 - torch.eye(len(sizes), dtype=sizes.dtype, device=sizes.device))
    return others / others.sum(1, keepdim=True).clamp_min(torch.finfo(sizes.dtype).tiny)


def mutual_losses(
    logits: Tensor, batch: Batch, weights: Tensor, gamma: float, alpha: float, weigh_samples: bool = False
) -> Tensor:
    """The mean over the minibatch of gamma L_label + alpha sum_q w_nq KL(p_q || p_n), for each student n [k].

    `logits` [M, b, C] have the k students first; `weights` [k, M] are of the teachers, whose predictions are constants.
    With `weigh_samples` a sample's divergence counts by 1 - exp(-CE_n / CE_q) (WSL, Zhou et al., ICLR 2021).
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
        else:  # a mean of divergences from constants is the divergence from their mean, up to a constant
            target = torch.einsum("kq,qbc->kbc", weights, q.exp())
            entropy = weights @ (q.exp() * q).sum(-1)
        loss = loss + alpha * (entropy - (target * log_p).sum(-1))
    return loss.mean(1)
