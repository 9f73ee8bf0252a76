"""FedDF (Lin, Kong, Stich and Jaggi, NeurIPS 2020), Algorithm 1. https://arxiv.org/abs/2006.07242"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import (
    ModelUpdate,
    Params,
    all_discarded,
    average,
    check_averaging,
    in_time,
    make_update,
)
from fedlab_runner.algorithms.shared.server_batches import server_batches, server_steps
from fedlab_runner.algorithms.shared.server_training import (
    ServerDataAlgorithm,
    check_server_training,
    require_server_data,
    train_on_server,
    training_operations,
)
from fedlab_runner.algorithms.shared.teachers import answering_operations, mean_answer, mean_answers
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import above


@dataclass(frozen=True)
class _FromTeachers:
    """KL(teachers || student) at a temperature; the targets are the teachers' mean logits."""

    temperature: float

    def __call__(self, model: FunctionalModel, batch: Batch) -> Tensor:
        student = F.log_softmax(model(batch.inputs) / self.temperature, dim=-1)
        return F.kl_div(student, F.softmax(batch.targets / self.temperature, dim=-1), reduction="batchmean")


def _knows_all(family: ModelFamily, before: Tensor, student: Tensor, teachers: Tensor) -> bool:
    """Whether each teacher [k, D] is the student [D], a step from the model `before` [D], and trains as it answers.

    Then the gradient is nothing but rounding, from which Adam makes steps as long as any others.
    """
    if family.mixes or family.draws:
        return False
    x, y = before[: family.num_params], student[: family.num_params]
    return all(torch.equal(y, x + (teacher[: family.num_params] - x)) for teacher in teachers)


@dataclass(frozen=True)
class FedDF(ServerDataAlgorithm[ModelUpdate]):
    """FedAvg whose server model then learns, on the server's inputs without labels, the mean logits of the arrived
    models.

    The loss is KL at `temperature`. Adam clips gradients to `clip_norm`; its `lr` falls to zero (`cosine`). Server data
    may be in- or out-of-domain. The server does not train in a round whose teachers are all the model that it has
    already, unless training has batch norm or dropout. With `cache_teachers` the server computes the teachers' logits
    once instead of in every epoch; the numbers are the same. `late_policy` and `weighting` are those of FedAvg.
    """

    known: ClassVar[tuple[str, ...]] = ("models",)
    training_copies: ClassVar[int] = 1  # the trained models
    payload_copies: ClassVar[int] = 2

    lr: float
    epochs: int
    batch_size: int
    max_steps: int | None
    temperature: float
    cosine: bool
    clip_norm: float | None
    cache_teachers: bool
    late_policy: str
    weighting: str

    def __post_init__(self) -> None:
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)
        check_averaging(self.late_policy, self.weighting, server_lr=1.0)
        above(0, temperature=self.temperature, clip_norm=self.clip_norm)

    def client_update(self, state: Params, cohort: Cohort) -> ModelUpdate:
        x = state.params
        y = cohort.train(x)
        return ModelUpdate(*make_update(cohort.family, x, y, self.late_policy, keep=True), y)

    def server_step(self, state: Params, arrivals: Updates[ModelUpdate], fed: Federation) -> Params:
        arrivals = in_time(arrivals, self.late_policy)
        if not len(arrivals):
            return state
        teachers = arrivals.upload.models
        x = average(state.params, arrivals, self.late_policy, self.weighting, server_lr=1.0)
        if _knows_all(fed.family, state.params, x, teachers):
            return Params(x)
        settings = self.epochs, self.batch_size, self.max_steps
        steps, size = server_steps(fed, *settings), len(require_server_data(self, fed))

        def lr(t: int) -> float:
            return self.lr * (0.5 * (1 + math.cos(math.pi * t / steps)) if self.cosine else 1.0)

        if self.cache_teachers and steps * self.batch_size >= size:
            batches = server_batches(fed, *settings, targets=mean_answers(fed, teachers))
        else:
            batches = server_batches(fed, *settings).taught(partial(mean_answer, fed, teachers))
        loss = _FromTeachers(self.temperature)
        return Params(train_on_server(fed, x, batches, lr, loss=loss, clip_norm=self.clip_norm).model)

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving)

    def operations(self, fed: Federation, local: float) -> float:
        data, steps = require_server_data(self, fed), server_steps(fed, self.epochs, self.batch_size, self.max_steps)
        taught = min(self.epochs * len(data), steps * self.batch_size)
        answering = answering_operations(
            fed, fed.cohort_size, min(taught, len(data)) if self.cache_teachers else taught
        )
        return local + training_operations(fed, self.epochs, self.batch_size, self.max_steps) + answering
