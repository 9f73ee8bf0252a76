"""Scores of models on a CPU that are one model's work at a time: threads, or workers of a cluster, take minibatch after
minibatch. Each operation has one thread, so that a score has the same bits whoever computes it.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.aligned import aligned_rows
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.joint_work import Complete, JointPart, JointSize, JointWorkers
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.separate_module import SeparateModule
from fedlab_runner.executors.team import team

# Floating-point operations of a model on its examples or a minibatch, from which on it works alone. With fewer, one
# call for several models takes less.
MIN_ALONE_FLOPS = 2e7
NETWORKS = 16  # that are ready at once
MIN_WIDTH = 32  # examples of a minibatch, so that several threads have one each


def correctly(logits: Tensor, targets: Tensor) -> Tensor:
    """Which examples are classified correctly [.., b] bool, from logits [.., b, C] and their classes [b] or [.., b].

    An example with a NaN among its logits is not.
    """
    largest, guess = logits.max(-1)  # NaN if any logit is; the first of equal logits
    return (guess == targets) & ~largest.isnan()


class Source(Protocol):
    """The examples of each model."""

    @property
    def lasting(self) -> Sequence[object]:
        """What stays for the whole run."""
        ...

    def examples(self, model: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Stored inputs and targets of some of a model's examples."""
        ...


class SameExamples(NamedTuple):
    """All models have the same examples."""

    inputs: Tensor
    targets: Tensor

    @property
    def lasting(self) -> Sequence[object]:
        return self

    def examples(self, model: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """See `Source`."""
        return self.inputs[begin:end], self.targets[begin:end]


class OwnExamples(NamedTuple):
    """Each model has the examples of a client."""

    client_data: ClientData
    ids: np.ndarray  # [m]

    @property
    def lasting(self) -> Sequence[object]:
        return (self.client_data,)

    def examples(self, model: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """See `Source`."""
        members = self.client_data.members(int(self.ids[model]))[begin:end]
        return self.client_data.examples(torch.from_numpy(members).to(self.client_data.inputs.device))


def least_alone(family: ModelFamily, inputs: Tensor) -> float:
    """How many examples like the first of these `inputs` are so much work that a model does it alone."""
    if family.device.type != "cpu" or not len(inputs):
        return math.inf
    return MIN_ALONE_FLOPS / family.flops(family.normalize(inputs[:1], family.dtype)).forward


def scored(
    executor: Executor, family: ModelFamily, models: Tensor, source: Source, sizes: Sequence[int], batch_size: int
) -> tuple[list[Tensor], list[float]]:
    """For each of the models [m, D], which have `sizes` examples: which ones it has right [n] bool, and its mean cross
    entropy.
    """
    threads, tasks = torch.get_num_threads(), list[Task]()
    for model, n in enumerate(sizes):
        # All threads together have a minibatch. How many models there are does not matter to a model's bits.
        width = min(batch_size, max(MIN_WIDTH, -(-min(batch_size, n) // threads)))
        tasks += [Task(model, begin, min(begin + width, n)) for begin in range(0, n, width)]
    job = _Scoring(family, models, source, tasks)
    found = _elsewhere(executor, job) or _here(job)
    right, total = [list[Tensor]() for _ in sizes], [0.0] * len(sizes)
    for task, (correct, loss) in zip(tasks, found, strict=True):
        right[task.model].append(correct)
        total[task.model] += loss
    return [torch.cat(parts) for parts in right], [loss / n for loss, n in zip(total, sizes, strict=True)]


class Task(NamedTuple):
    """Some examples of a model."""

    model: int
    begin: int
    end: int


Score = tuple[Tensor, float]  # of a task: which examples are right [b] bool, and the sum of their losses


@dataclass(frozen=True, eq=False)
class _Scoring:
    """Tasks, of which a part has those at its places."""

    family: ModelFamily
    models: Tensor  # [m, D]
    source: Source
    tasks: list[Task]

    what = "evaluation"

    @property
    def lasting(self) -> Sequence[object]:
        return self.family, *self.source.lasting

    def carry_out(self, executor: Executor, part: JointPart, complete: Complete) -> list[Tensor]:
        """Which examples of all tasks are right, and the sum of each task's losses [t] float64."""
        found = list[Score]()
        for model, tasks in itertools.groupby((self.tasks[i] for i in part.places.tolist()), lambda task: task.model):
            with self.ready(range(model, model + 1)) as score:
                found += map(score, tasks)
        right, sums = zip(*found, strict=True)
        return [torch.cat(right), torch.tensor(sums, dtype=torch.float64)]

    @contextmanager
    def ready(self, models: range) -> Iterator[Callable[[Task], Score]]:
        """A context with a function that scores a task of one of these models, for several threads at once."""
        family = self.family
        family.mode(False)
        rows = aligned_rows(self.models[models.start : models.stop])
        networks = {model: SeparateModule(family, w) for model, w in zip(models, rows, strict=True)}
        for network in networks.values():
            network.follow_mode()

        def score(task: Task) -> Score:
            inputs, targets = self.source.examples(*task)
            with torch.no_grad():  # a thread's own
                logits = networks[task.model](family.normalize(inputs, family.dtype))
                return correctly(logits, targets), float(losses(logits, targets, None).double().sum())

        try:
            yield score
        finally:
            for network in networks.values():
                network.give_back()


def _here(job: _Scoring) -> list[Score]:
    """The scores of all tasks; threads take one after another."""
    found = dict[int, Score]()
    with team() as its:
        its.alone()  # also where there is one task
        for _, some in itertools.groupby(enumerate(job.tasks), lambda numbered: numbered[1].model // NETWORKS):
            tasks = list(some)
            with job.ready(range(tasks[0][1].model, tasks[-1][1].model + 1)) as score:
                its.each(partial(_take, iter(tasks), score, found), min(its.size, len(tasks)))
    return [found[number] for number in range(len(job.tasks))]


def _take(
    left: Iterator[tuple[int, Task]], score: Callable[[Task], Score], found: dict[int, Score], _thread: int
) -> None:
    """In each thread: scores one task after another, until none is left."""
    for number, task in left:
        found[number] = score(task)


def _elsewhere(executor: Executor, job: _Scoring) -> list[Score] | None:
    """The scores of all tasks, from workers of a cluster; None if that is not faster."""
    if not isinstance(executor, JointWorkers) or not job.tasks:
        return None
    family, count = job.family, len(job.tasks)
    inputs, _ = job.source.examples(*job.tasks[0])
    examples = sum(task.end - task.begin for task in job.tasks)
    operations = examples * family.flops(family.normalize(inputs[:1], family.dtype)).forward

    def divide(parts: int) -> list[JointPart]:
        return [JointPart(places, []) for places in torch.arange(count).tensor_split(parts)]

    told = executor.share(job, divide, JointSize(operations, 0, job.models.numel(), count))
    if told is None:
        return None
    found: list[Score] = []
    for places, (right, sums) in told:
        tasks = [job.tasks[place] for place in places.tolist()]
        parts = torch.split(right, [task.end - task.begin for task in tasks])
        found += zip(parts, sums.tolist(), strict=True)
    return found
