"""FedDF (Lin, Kong, Stich and Jaggi, NeurIPS 2020), Algorithm 1. https://arxiv.org/abs/2006.07242"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import (
    ModelUpdate,
    Params,
    average,
    check_averaging,
    in_time,
    make_update,
)
from fedlab_runner.algorithms.shared.server_training import (
    ServerDataAlgorithm,
    answering_operations,
    check_server_training,
    mean_answer,
    mean_answers,
    require_server_data,
    server_batches,
    server_steps,
    train_on_server,
    training_operations,
)
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import above


@dataclass(frozen=True)
class FedDF(ServerDataAlgorithm[ModelUpdate]):
    """FedAvg whose server model then learns, on the server's inputs without labels, the mean logits of the arrived
    models.

    The loss is KL at `temperature`. Adam clips gradients to `clip_norm`; its `lr` falls to zero (`cosine`). Server data
    may be in- or out-of-domain. With `cache_teachers` the server computes the teachers' logits once instead of in every
    epoch; the numbers are the same. `late_policy` and `weighting` are those of FedAvg.
    """

    known: ClassVar[tuple[str, ...]] = ("models",)
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
        steps, size = (
            server_steps(fed, self.epochs, self.batch_size, self.max_steps),
            len(require_server_data(self, fed)),
        )

        def lr(t: int) -> float:
            return self.lr * (0.5 * (1 + math.cos(math.pi * t / steps)) if self.cosine else 1.0)

        def loss(model: FunctionalModel, batch: Batch) -> Tensor:
            """KL(teachers || student); the targets are the teachers' mean logits."""
            student = F.log_softmax(model(batch.inputs) / self.temperature, dim=-1)
            return F.kl_div(student, F.softmax(batch.targets / self.temperature, dim=-1), reduction="batchmean")

        batches = self._taught(fed, teachers, cached=self.cache_teachers and steps * self.batch_size > size)
        return Params(train_on_server(fed, x, batches, lr, loss=loss, clip_norm=self.clip_norm).model)

    def _taught(self, fed: Federation, teachers: Tensor, cached: bool) -> Iterator[Batch]:
        """Minibatches whose targets are the mean logits of the teachers [A, D]."""
        if cached:
            logits = mean_answers(fed, teachers, self.batch_size)
            yield from server_batches(fed, self.epochs, self.batch_size, self.max_steps, targets=logits)
            return
        for batch in server_batches(fed, self.epochs, self.batch_size, self.max_steps):
            yield batch._replace(targets=mean_answer(fed, teachers, batch.inputs))

    def operations(self, fed: Federation, local: float) -> float:
        data, steps = require_server_data(self, fed), server_steps(fed, self.epochs, self.batch_size, self.max_steps)
        taught = min(self.epochs * len(data), steps * self.batch_size)
        answering = answering_operations(
            fed, fed.cohort_size, min(taught, len(data)) if self.cache_teachers else taught
        )
        return local + training_operations(fed, self.epochs, self.batch_size, self.max_steps) + answering
