"""FedBE (Chen and Chao, ICLR 2021): an ensemble of sampled models teaches the server's. https://arxiv.org/abs/2009.01974"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    train_on_server,
    training_operations,
)
from fedlab_runner.algorithms.shared.teachers import answering_operations, mean_answers
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.optimizer import SGD
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import above, at_least, one_of, unused, within

SAMPLERS = ("gaussian", "dirichlet")  # values of the field `sampler`
MIN_VARIANCE = 1e-5  # of a coordinate of unit directions, so that samples vary even around one client


@dataclass(frozen=True)
class FedBE(ServerDataAlgorithm[ModelUpdate]):
    """FedAvg whose server model then learns from an ensemble: the arrived models, their average, and `num_samples`
    models drawn around them. It learns the ensemble's mean probabilities on the server's inputs, without labels.

    `temperature` sharpens the mean to p^(1 / temperature). With `sampler` gaussian the server draws each tensor's
    change from the mean and deviation of the clients' directions; `noise` (null: 0.1) scales the deviation. With
    dirichlet it averages the clients' models by weights from Dir(`alpha`) (null: 1). The student's SGD has `lr`,
    `momentum` and `weight_decay`. From step `swa_start` on, the server averages the student of every `swa_every` steps
    (SWA). Server data may be in- or out-of-domain. `late_policy` and `weighting` are those of FedAvg.
    """

    known: ClassVar[tuple[str, ...]] = ("models",)
    model_copies: ClassVar[int] = 4  # y, y - x, the directions and the sampled models
    payload_copies: ClassVar[int] = 2

    sampler: str
    num_samples: int
    noise: float | None
    alpha: float | None
    temperature: float
    lr: float
    momentum: float
    weight_decay: float
    epochs: int
    batch_size: int
    max_steps: int | None
    swa_start: int
    swa_every: int
    late_policy: str
    weighting: str

    def __post_init__(self) -> None:
        one_of(SAMPLERS, sampler=self.sampler)
        at_least(0, num_samples=self.num_samples, noise=self.noise, weight_decay=self.weight_decay)
        above(0, alpha=self.alpha, temperature=self.temperature)
        idle = {"alpha": self.alpha} if self.sampler == "gaussian" else {"noise": self.noise}
        unused(f"sampler={self.sampler}", **idle)
        within("[0, 1)", momentum=self.momentum)
        at_least(1, swa_start=self.swa_start, swa_every=self.swa_every)
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)
        check_averaging(self.late_policy, self.weighting, server_lr=1.0)

    def client_update(self, state: Params, cohort: Cohort) -> ModelUpdate:
        x = state.params
        y = cohort.train(x)
        return ModelUpdate(*make_update(cohort.family, x, y, self.late_policy, keep=True), y)

    def server_step(self, state: Params, arrivals: Updates[ModelUpdate], fed: Federation) -> Params:
        arrivals = in_time(arrivals, self.late_policy)
        x = average(state.params, arrivals, self.late_policy, self.weighting, server_lr=1.0)
        if not len(arrivals) or not server_steps(fed, self.epochs, self.batch_size, self.max_steps):
            return Params(x)
        rng, y = generator(fed.seed, Purpose.ALGORITHM, fed.round), arrivals.upload.models
        teachers = [*y, x, *self._samples(fed.family, state.params, y, x, rng)]
        p = mean_answers(fed, teachers, lambda logits: F.softmax(logits, -1))
        p = (p / p.amax(-1, keepdim=True)) ** (1 / self.temperature)  # the largest 1: not all of them underflow
        return Params(self._taught(fed, x, p / p.sum(-1, keepdim=True)))

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving)

    def _samples(
        self, family: ModelFamily, x: Tensor, y: Tensor, mean: Tensor, rng: np.random.Generator
    ) -> Iterator[Tensor]:
        """Models [D] drawn around the clients' models y [A, D], which started from x [D].

        Gaussian samples have the batch norm statistics of `mean` [D], the clients' average.
        """
        p = family.num_params
        if self.sampler == "dirichlet":
            for weights in rng.dirichlet(np.full(len(y), 1.0 if self.alpha is None else self.alpha), self.num_samples):
                yield torch.from_numpy(weights).to(y) @ y
            return
        centre, deviation = _directions(family, y[:, :p] - x[:p])
        scale = 0.1 if self.noise is None else self.noise
        for _ in range(self.num_samples):
            noise = torch.from_numpy(rng.standard_normal(p)).to(x)
            yield torch.cat([x[:p] + centre + scale * deviation * noise, mean[p:]])

    def _taught(self, fed: Federation, x: Tensor, targets: Tensor) -> Tensor:
        """The student [D] after training from x [D] on the probabilities `targets` [n, C]."""
        mean, count = x, 0

        def watch(steps: int, model: Tensor) -> bool:
            nonlocal mean, count
            if steps >= self.swa_start and (steps - self.swa_start) % self.swa_every == 0:
                count += 1
                mean = mean + (model - mean) / count
            return False

        batches = server_batches(fed, self.epochs, self.batch_size, self.max_steps, targets=targets)
        optimizer = SGD(self.momentum, False, self.weight_decay)
        trained = train_on_server(fed, x, batches, self.lr, optimizer=optimizer, loss=_divergence, watch=watch)
        return mean if count else trained.model

    def operations(self, fed: Federation, local: float) -> float:
        answering = answering_operations(fed, fed.cohort_size + 1 + self.num_samples)
        return local + training_operations(fed, self.epochs, self.batch_size, self.max_steps) + answering


def _directions(family: ModelFamily, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation [P] of clients' changes [A, P]: for each tensor the mean and deviation of the changes'
    directions, times the changes' mean length.
    """
    centres, deviations = [], []
    for part in torch.split(deltas, [t.numel() for t in family.views(deltas[0]).values()], dim=1):
        lengths = torch.linalg.vector_norm(part, dim=1, keepdim=True)
        unit = part / lengths.clamp_min(torch.finfo(part.dtype).tiny)
        variance = (unit.square().mean(0) - unit.mean(0).square()).clamp_min(MIN_VARIANCE)
        centres.append(lengths.mean() * unit.mean(0))
        deviations.append(lengths.mean() * variance.sqrt())
    return torch.cat(centres), torch.cat(deviations)


def _divergence(model: FunctionalModel, batch: Batch) -> Tensor:
    """KL(teachers || student); the targets are probabilities [b, C]."""
    return F.kl_div(F.log_softmax(model(batch.inputs), dim=-1), batch.targets, reduction="batchmean")
