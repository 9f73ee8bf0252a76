"""What several models answer on the server's examples: their mean teaches the server's model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.server_gradient import parts_of
from fedlab_runner.algorithms.shared.server_training import example_flops
from fedlab_runner.core.aligned import aligned
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.joint_work import Complete, JointPart, JointSize, JointWorkers
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.executors.team import Team, team

ANSWERED_AT_ONCE = 512  # examples: a bound on memory
Teachers = Tensor | Sequence[Tensor]  # models [D] in evaluation mode
Answer = Callable[[Tensor], Tensor]  # of logits [b, C]


def answering_operations(fed: Federation, teachers: int, examples: int | None = None) -> float:
    """Operations of `teachers` models' logits on `examples` examples (None: on all of the server's examples once)."""
    n = 0 if fed.server_data is None else len(fed.server_data)
    return teachers * (n if examples is None else examples) * example_flops(fed).forward


@torch.no_grad()
def mean_answer(fed: Federation, teachers: Teachers, inputs: Tensor) -> Tensor:
    """The mean, over the teachers, of the logits [b, C] on normalised inputs."""
    with team() as its:
        return _mean_answer(fed, teachers, inputs, None, its)


@torch.no_grad()
def mean_answers(fed: Federation, teachers: Teachers, answer: Answer | None = None) -> Tensor:
    """The mean, over the teachers, of the logits or of `answer(logits)` on all of the server's examples in their order,
    [n, C]. Workers of a cluster share the teachers where that is faster.
    """
    data, family = fed.server_data, fed.family
    assert data is not None
    if (found := _elsewhere(fed, teachers, answer)) is not None:
        return found
    with team() as its:
        parts = (_mean_answer(fed, teachers, inputs, answer, its) for inputs in _normalised(family, data.inputs))
        return torch.cat(list(parts))


def _mean_answer(fed: Federation, teachers: Teachers, inputs: Tensor, answer: Answer | None, its: Team) -> Tensor:
    family = fed.family
    fed.metrics.count_server_flops(len(teachers) * len(inputs) * family.flops(inputs).forward)
    return _each_answer(family, teachers, inputs, answer, its.size, its).mean(0)


def _each_answer(
    family: ModelFamily, teachers: Teachers, inputs: Tensor, answer: Answer | None, threads: int, its: Team
) -> Tensor:
    """The answers [k, b, C] of all teachers on normalised inputs, in parts as so many threads have them."""
    most = threads if family.device.type == "cpu" else 1
    logits = (_logits(family, y, inputs, most, its) for y in teachers)
    return torch.stack([z if answer is None else answer(z) for z in logits])


@dataclass(frozen=True, eq=False)
class _Answers:
    """What all teachers share."""

    family: ModelFamily
    inputs: Tensor  # [n, ...] of the server, as they are stored
    answer: Answer | None
    threads: int  # of the run: its parts of a minibatch
    round: int

    @property
    def what(self) -> str:
        return f"round {self.round + 1}"

    @property
    def lasting(self) -> Sequence[object]:
        return self.family, self.inputs

    @torch.no_grad()
    def carry_out(self, executor: Executor, part: JointPart, complete: Complete) -> list[Tensor]:
        """The answers of some teachers on all examples [k, n, C]."""
        (teachers,), family = part.models, self.family
        with team() as its:
            parts = (
                _each_answer(family, teachers, inputs, self.answer, self.threads, its)
                for inputs in _normalised(family, self.inputs)
            )
            return [torch.cat(list(parts), 1)]


def _elsewhere(fed: Federation, teachers: Teachers, answer: Answer | None) -> Tensor | None:
    """The mean answers on all of the server's examples, with workers of a cluster; None if that is not faster.

    Small examples stay here, where several threads may compute each operation: a worker has one.
    """
    data, family, threads = fed.server_data, fed.family, torch.get_num_threads()
    if data is None or data.mapped or not isinstance(fed.executor, JointWorkers):
        return None
    n, flops = len(data), example_flops(fed)
    if threads > 1 and parts_of(data.inputs[:ANSWERED_AT_ONCE], flops.forward, threads) == 1:
        return None

    def divide(count: int) -> list[JointPart]:
        models = teachers if isinstance(teachers, Tensor) else torch.stack(list(teachers))
        return [JointPart(rows, [models[rows]]) for rows in torch.arange(len(models)).tensor_split(count)]

    operations = answering_operations(fed, len(teachers))
    size = JointSize(operations, 0, len(teachers) * (family.size + n * family.num_classes), len(teachers))
    told = fed.executor.share(_Answers(family, data.inputs, answer, threads, fed.round), divide, size)
    if told is None:
        return None
    fed.metrics.count_server_flops(int(operations))
    every = torch.cat([answers for _, (answers,) in told])
    return torch.cat([some.contiguous().mean(0) for some in torch.split(every, ANSWERED_AT_ONCE, 1)])


def _normalised(family: ModelFamily, inputs: Tensor) -> Iterator[Tensor]:
    """Examples as models take them, some at a time."""
    return (family.normalize(some.to(family.device), family.dtype) for some in torch.split(inputs, ANSWERED_AT_ONCE))


def _logits(family: ModelFamily, w: Tensor, inputs: Tensor, most: int, its: Team) -> Tensor:
    """Logits [b, C] of a model [D] on normalised inputs, in evaluation mode, in up to `most` parts."""
    parts = parts_of(inputs, family.flops(inputs).forward, most)
    family.mode(False)
    split = torch.tensor_split(inputs, parts)

    def of_part(part: int) -> Tensor:
        with torch.no_grad():  # a thread's own
            return family.forward(None, split[part])

    with family.bound(aligned(w)):
        found = its.each(of_part, parts) if its.size >= parts else [of_part(part) for part in range(parts)]
    return torch.cat(found) if parts > 1 else found[0]
