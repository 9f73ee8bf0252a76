"""FedBE (Chen and Chao, ICLR 2021): an ensemble of sampled models teaches the server's. https://arxiv.org/abs/2009.01974"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
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
    answering_operations,
    check_server_training,
    mean_answers,
    require_server_data,
    server_batches,
    server_steps,
    train_on_server,
    training_operations,
)
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.optimizer import SGD
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.updates import Updates

SAMPLERS = ("gaussian", "dirichlet")
LEAST_VARIANCE = 1e-5  # of a coordinate of unit directions: one client, or clients that agree, vary too


@dataclass(frozen=True)
class FedBE(ServerAlgorithm[Params, ModelUpdate]):
    """FedAvg whose server then teaches its model, on its own inputs without their labels, the mean probabilities of the
    arrived models, their average and `num_samples` models drawn around them; p^(1 / `temperature`) sharpens these.

    `sampler` gaussian draws each tensor's change from the clients' mean and variance of directions, the deviation times
    `noise`; dirichlet averages the clients by weights from Dir(`alpha`). The student's SGD has `lr`, `momentum` and
    `weight_decay`; from step `swa_start` on, every `swa_every` steps, its models are averaged (SWA). In- and
    out-of-domain data serve alike. `late_policy` and `weighting` are FedAvg's.
    """

    known: ClassVar[tuple[str, ...]] = ("models",)
    model_copies: ClassVar[int] = 4  # y, y - x, the directions and the sampled models
    payload_copies: ClassVar[int] = 2

    sampler: str
    num_samples: int
    noise: float
    alpha: float
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
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler}")
        for name in ("num_samples", "noise", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        for name in ("alpha", "temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        for name in ("swa_start", "swa_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)
        check_averaging(self.late_policy, self.weighting, server_lr=1.0)

    def check(self, fed: Federation) -> None:
        require_server_data(self, fed)

    def init(self, fed: Federation) -> Params:
        self.check(fed)
        return Params(fed.family.init(fed.seed))

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
        p = mean_answers(fed, teachers, self.batch_size, lambda logits: F.softmax(logits, -1))
        p = p ** (1 / self.temperature)
        return Params(self._taught(fed, x, p / p.sum(-1, keepdim=True)))

    def _samples(
        self, family: ModelFamily, x: Tensor, y: Tensor, mean: Tensor, rng: np.random.Generator
    ) -> Iterator[Tensor]:
        """Models [D] drawn around those of the clients [A, D], which had started from x [D]; their `mean` [D] has the
        batch norm statistics.
        """
        p = family.num_params
        if self.sampler == "dirichlet":
            for weights in rng.dirichlet(np.full(len(y), self.alpha), self.num_samples):
                yield torch.from_numpy(weights).to(y) @ y
            return
        centre, deviation = _directions(family, y[:, :p] - x[:p])
        for _ in range(self.num_samples):
            noise = torch.from_numpy(rng.standard_normal(p)).to(x)
            yield torch.cat([x[:p] + centre + self.noise * deviation * noise, mean[p:]])

    def _taught(self, fed: Federation, x: Tensor, targets: Tensor) -> Tensor:
        """The student [D] that started from x [D], with the teachers' probabilities [n, C] as targets."""
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

    def models(self, state: Params) -> Tensor:
        return state.params


def _directions(family: ModelFamily, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of clients' changes [A, P], tensor by tensor: of their directions, times their mean length."""
    centres, deviations = [], []
    for part in torch.split(deltas, [t.numel() for t in family.views(deltas[0]).values()], dim=1):
        lengths = torch.linalg.vector_norm(part, dim=1, keepdim=True)
        unit = part / lengths.clamp_min(torch.finfo(part.dtype).tiny)
        variance = (unit.square().mean(0) - unit.mean(0).square()).clamp_min(LEAST_VARIANCE)
        centres.append(lengths.mean() * unit.mean(0))
        deviations.append(lengths.mean() * variance.sqrt())
    return torch.cat(centres), torch.cat(deviations)


def _divergence(model: FunctionalModel, batch: Batch) -> Tensor:
    """KL(teachers || student); the targets are probabilities [b, C]."""
    return F.kl_div(F.log_softmax(model(batch.inputs), dim=-1), batch.targets, reduction="batchmean")
