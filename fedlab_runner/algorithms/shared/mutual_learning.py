"""Mutual learning (Zhang et al., CVPR 2018): models teach each other on the examples of one client."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.pupils import MIN_SHARED_FLOPS, Group, Step, pupils
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.global_rng import own_generators
from fedlab_runner.core.joint_work import Complete, JointPart, JointSize, JointWorkers, alone
from fedlab_runner.core.local_training import LocalTraining
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
    than `MIN_SHARED_SECONDS`, the executor's processes, or those of a cluster where that is faster. The key `nonfinite`
    says what happens to students that are not finite.
    """
    if not epochs:
        return [s.models for s in students]
    groups, costs = [*students, *teachers], _costs(fed, students, teachers)
    job = MutualJob.of(fed, client, [group.family for group in groups], len(students), epochs, objective)
    operations = _examples_seen(fed, job) * sum(costs)
    fed.metrics.count_server_flops(operations)
    learnt = _elsewhere(fed, job, groups, costs, operations) or _here(fed, job, groups, costs, operations)
    return learnt if fed.guard.learnt(client, learnt) else [s.models for s in students]


@dataclass(frozen=True, eq=False)
class MutualJob:
    """What all parts of the models share."""

    family: ModelFamily  # for the minibatches
    families: tuple[ModelFamily, ...]  # of each group of models; those of students come first
    students: int  # how many groups learn
    client_data: ClientData
    client: int
    local: LocalTraining
    lr: float
    seed: int
    round: int
    objective: Objective

    @classmethod
    def of(
        cls,
        fed: Federation,
        client: int,
        families: Sequence[ModelFamily],
        students: int,
        epochs: int,
        objective: Objective,
    ) -> "MutualJob":
        """The job of a federation in its present round."""
        models, local = (fed.family, tuple(families), students), replace(fed.local, epochs=epochs, steps=None)
        return cls(*models, fed.client_data, client, local, fed.lr, fed.seed, fed.round, objective)

    @property
    def what(self) -> str:
        return f"round {self.round + 1}"

    @property
    def lasting(self) -> Sequence[object]:
        return list(dict.fromkeys([self.client_data, self.family, *self.families]))

    @property
    def drops_single(self) -> bool:
        """Whether a minibatch of a single example is left out."""
        return any(family.has_batch_norm for family in self.families)

    def part(self, groups: Sequence[Learners], rows: Rows) -> JointPart:
        """The part of the models with these rows of each group."""
        first = itertools.accumulate((len(group.models) for group in groups), initial=0)
        places = torch.cat([begin + some for begin, some in zip(first, rows, strict=False)])
        return JointPart(places, [group.models[some] for group, some in zip(groups, rows, strict=True)])

    def carry_out(self, executor: Executor, part: JointPart, complete: Complete) -> list[Tensor]:
        """The learnt models of a part's students, of each group [k, D_a]."""
        chosen = [
            Group(family, models, learn=g < self.students)
            for g, (family, models) in enumerate(zip(self.families, part.models, strict=True))
            if len(models)  # a part may have no model of an architecture
        ]
        movable = part.places[: sum(len(models) for models in part.models[: self.students])]
        step, device = Step(self.local.make_optimizer(), self.local.clip_norm, self.lr), self.family.device
        of_dropout = torch_seed(self.seed, Purpose.DISTILLATION_DROPOUT, self.round, self.client)
        with own_generators(device, of_dropout), pupils(chosen, step, executor) as its:
            for t, batch in enumerate(self.batches()):
                logits = its.logits(batch).requires_grad_()
                loss = self.objective(complete(part.places, logits), batch)[movable]
                (gradient,) = torch.autograd.grad(loss.sum(), logits, materialize_grads=True)
                its.step(gradient[: len(movable)], t)
            learnt = iter(its.learnt())
            return [next(learnt) if len(models) else models for models in part.models[: self.students]]

    def batches(self) -> Iterator[Batch]:
        """Minibatches of the client's examples, for models of all families, in an order drawn for mutual learning."""
        client_data, family, ids = self.client_data, self.family, np.array([self.client])
        plan = client_data.plan(
            ids,
            self.local,
            seed=self.seed,
            round=self.round,
            drop_single=self.drops_single,
            purpose=Purpose.DISTILLATION,
        )
        offsets = client_data.offsets(family.loss_function, ids, family.num_classes)
        for t, size in enumerate(plan.sizes[0].tolist()):
            rows = plan.indices[0, t, :size]
            mask = torch.ones(size, dtype=family.dtype, device=family.device)
            batch = family.batch(*client_data.minibatch(rows), mask)
            yield batch._replace(offsets=None if offsets is None else offsets[0].to(family.dtype))


def _elsewhere(
    fed: Federation, job: MutualJob, groups: Sequence[Learners], costs: Sequence[int], operations: int
) -> list[Tensor] | None:
    """The students' models, learnt on other machines too; None if the executor has none or if that is not faster."""
    if not isinstance(fed.executor, JointWorkers):
        return None
    students = groups[: job.students]
    learning = sum(len(s.models) for s in students)

    def divide(count: int) -> list[JointPart]:
        return [job.part(groups, rows) for rows in _shares(groups, costs, learning, count)]

    steps = -(-operations // (sum(costs) * fed.local.batch_size))
    values = sum(group.models.numel() for group in groups) + sum(s.models.numel() for s in students)
    size = JointSize(operations, steps, values, learning if _divisible(groups) else 1)
    if (told := fed.executor.share(job, divide, size)) is None:
        return None
    learnt, first = [torch.empty_like(s.models) for s in students], 0
    for g, rows in enumerate(learnt):
        for its, models in told:
            places = its - first
            rows[places[(places >= 0) & (places < len(rows))]] = models[g]
        first += len(rows)
    return learnt


def _here(
    fed: Federation, job: MutualJob, groups: Sequence[Learners], costs: Sequence[int], operations: int
) -> list[Tensor]:
    """The students' models, learnt in this process, or in forks that share the models.

    One process takes all models if the work of so many `operations` is short, on a GPU, or if its threads share the
    models, which takes less than processes do.
    """
    students = groups[: job.students]
    learning = sum(len(s.models) for s in students)
    count = min(fed.executor.num_processes(), learning)
    threads = torch.get_num_threads() >= count and fed.local.batch_size * max(costs) >= MIN_SHARED_FLOPS
    short = operations < MIN_SHARED_SECONDS * FLOPS_A_SECOND
    if count > 1 and _divisible(groups) and fed.family.device.type == "cpu" and not threads and not short:
        parts = _shares(groups, costs, learning, count)
        learnt = [shared_zeros(s.models.shape, s.models.dtype) for s in students]

        def run(part: int, shared: SharedRows) -> None:
            found = job.carry_out(fed.executor, job.part(groups, parts[part]), shared.complete)
            for room, rows, models in zip(learnt, parts[part], found, strict=False):
                room[rows] = models

        shape = sum(len(s.models) for s in groups), fed.local.batch_size, fed.family.num_classes
        if in_step(len(parts), shape, fed.family.dtype, run):
            return learnt
    everything = JointPart(torch.arange(len(costs)), [group.models for group in groups])
    return job.carry_out(fed.executor, everything, alone)


def _costs(fed: Federation, students: Sequence[Learners], teachers: Sequence[Learners]) -> list[int]:
    """The floating-point operations of each model for one example; students come first."""
    example = fed.family.normalize(fed.client_data.inputs[:1], fed.family.dtype)
    learning = [s.family.flops(example).step for s in students for _ in s.models]
    return learning + [s.family.flops(example).forward for s in teachers for _ in s.models]


def _examples_seen(fed: Federation, job: MutualJob) -> int:
    """How many examples of the client each model sees, with repetitions."""
    return int(fed.client_data.examples_seen(np.array([job.client]), job.local, job.drops_single)[0])


def _divisible(groups: Sequence[Learners]) -> bool:
    """Whether several processes can share the models: dropout draws from one stream."""
    return not any(group.family.draws for group in groups)


def _shares(groups: Sequence[Learners], costs: Sequence[int], students: int, count: int) -> list[Rows]:
    """The rows of each group that each of `count` processes takes: even shares of the `costs`. The first models, which
    are `students`, are dealt out before the others, so that each process has one.
    """
    places = [(g, row) for g, group in enumerate(groups) for row in range(len(group.models))]
    rows: list[list[list[int]]] = [[[] for _ in groups] for _ in range(count)]
    loads = [0] * count
    for model in sorted(range(len(places)), key=lambda model: (model >= students, -costs[model])):
        part, (group, row) = loads.index(min(loads)), places[model]
        rows[part][group].append(row)
        loads[part] += costs[model]
    return [[torch.tensor(sorted(some), dtype=torch.int64) for some in part] for part in rows]


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
