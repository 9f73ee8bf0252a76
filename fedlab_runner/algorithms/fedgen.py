"""FedGEN (Zhu, Hong and Zhou, ICML 2021): data-free distillation by a generator. https://arxiv.org/abs/2105.10056"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.algorithms.shared.averaging import average, check_averaging, in_time, outgoing
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.federation import Arrivals, Cohort, Federation
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch, Classifier, Model, Normalize, Task
from fedlab_runner.core.optimizer import Adam, zero_slots
from fedlab_runner.core.rng import Purpose, generator, torch_seed
from fedlab_runner.core.work import Loss, PerStep
from fedlab_runner.utils.errors import UserError

FLOOR = 1e-4  # where alpha and beta stop falling, in the authors' code


class Upload(NamedTuple):
    """What is averaged, the client's model, which the server has from it, and how many examples it has of a class."""

    rows: Tensor  # y - x or y [K, P]
    statistics: Tensor  # of batch norm, as they are [K, B]
    models: Tensor  # y [K, D]
    counts: Tensor  # [K, C]


class State(NamedTuple):
    """The server's model, its generator and the state of the generator's Adam."""

    params: Tensor  # x [D]
    generator: Tensor  # parameters, then batch norm statistics [G]
    slots: tuple[Tensor, ...]  # of the generator's parameters
    steps: int  # that the generator has been trained


@dataclass(frozen=True)
class FedGEN(ServerAlgorithm[State, Upload]):
    """FedAvg whose server learns to generate, from `noise_size` uniform numbers and a label, what enters the clients'
    classifiers, by `steps` minibatches of `batch_size` a round: the clients' own classifiers should see the label,
    each as far as it has examples of it, and generated features should differ (`eta`). Adam has `lr`, times `lr_decay`
    every round, and `weight_decay`; the generator has one hidden layer of `hidden`.

    In their first `gen_epochs` epochs clients also learn `gen_batch_size` generated features (`alpha`), and to agree
    with the classifier's view of features generated for their own labels (`beta`); both weights fall by `decay` every
    round. `late_policy` and `weighting` are FedAvg's.
    """

    known: ClassVar[tuple[str, ...]] = ("models",)
    sent: ClassVar[int] = 2

    alpha: float
    beta: float
    decay: float
    gen_epochs: int
    gen_batch_size: int
    noise_size: int
    hidden: int
    eta: float
    lr: float
    lr_decay: float
    weight_decay: float
    steps: int
    batch_size: int
    late_policy: str
    weighting: str

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gen_epochs", "eta", "weight_decay", "steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        for name in ("decay", "lr_decay"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be > 0 and <= 1, got {getattr(self, name)}")
        for name, least in (("gen_batch_size", 1), ("noise_size", 1), ("hidden", 1), ("batch_size", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if not self.lr > 0:
            raise ValueError(f"lr must be > 0, got {self.lr}")
        check_averaging(self.late_policy, self.weighting, server_lr=1.0)

    def check(self, fed: Federation) -> None:
        _classifier(fed.task)

    def init(self, fed: Federation) -> State:
        self.check(fed)
        task = self._generator(fed.task)
        seed = torch_seed(fed.seed, Purpose.ALGORITHM) >> 15  # of 48 bits; no client draws in the first round
        start = task.init(seed)
        return State(fed.task.init(fed.seed), start, zero_slots(self._optimizer(), start[: task.num_params]), 0)

    def broadcast(self, state: State) -> Sequence[Tensor]:
        return state.params, state.generator

    def client_update(self, state: State, cohort: Cohort) -> Upload:
        x = state.params
        if state.steps and (self.alpha or self.beta):
            y = cohort.train(x, loss=self._loss(state, cohort), per_step=self._draws(cohort))
        else:
            y = cohort.train(x)
        return Upload(*outgoing(cohort.task, x, y, self.late_policy, keep=True), y, cohort.label_counts.to(x))

    def _loss(self, state: State, cohort: Cohort) -> Loss:
        """CE on the client's examples, alpha CE on generated features and beta KL between the two, with draws of
        `_draws`.
        """
        task, n = cohort.task, self.gen_batch_size
        alpha, beta = (min(w, max(FLOOR, w * self.decay**cohort.round)) for w in (self.alpha, self.beta))
        generate = self._generate(task, state.generator)

        def loss(model: Model, batch: Batch, noise: Tensor, labels: Tensor, active: Tensor) -> Tensor:
            logits = model(batch.inputs)
            y = torch.cat([labels, batch.targets])
            weight, bias = _head(task, model.params)
            guesses = F.linear(generate(noise[: len(y)], y), weight, bias)
            invented = F.cross_entropy(guesses[:n], labels)
            wanted = F.softmax(guesses[n:], -1).detach()
            agreement = F.kl_div(F.log_softmax(logits, -1), wanted, reduction="none").sum(-1)
            own = batch.mean(losses(logits, batch.targets, batch.offsets))
            ratio = n / cohort.local.batch_size
            return own + active * (ratio * alpha * invented + beta * batch.mean(agreement))

        return loss

    def _draws(self, cohort: Cohort) -> PerStep:
        """For each client and step: noise, of generated labels and then of the client's [k, n + b, z], the labels
        [k, n], and whether it still uses them [k].
        """
        task, n, streams, batch_size = cohort.task, self.gen_batch_size, cohort.streams, cohort.local.batch_size
        until = self.gen_epochs * cohort.steps_per_epoch

        def draws(rows: np.ndarray, step: int) -> tuple[Tensor, ...]:
            noise = np.empty((len(rows), n + batch_size, self.noise_size))
            labels = np.empty((len(rows), n), np.int64)
            for k, rng in enumerate(streams(rows, step)):
                labels[k] = rng.integers(task.num_classes, size=n)
                noise[k] = rng.random(noise[k].shape)
            arrays = (noise, task.dtype), (labels, torch.int64), (step < until[rows], task.dtype)
            return tuple(torch.from_numpy(array).to(task.device, dtype) for array, dtype in arrays)

        return draws

    def server_step(self, state: State, arrivals: Arrivals[Upload], fed: Federation) -> State:
        arrivals = in_time(arrivals, self.late_policy)
        if not len(arrivals):
            return state
        x = average(state.params, arrivals, self.late_policy, self.weighting, server_lr=1.0)
        return self._train_generator(fed, state, arrivals.upload)._replace(params=x)

    def _train_generator(self, fed: Federation, state: State, upload: Upload) -> State:
        """The generator after its steps of this round, with the diversity loss of the authors' code."""
        task, p, clients = self._generator(fed.task), fed.task.num_params, len(upload.models)
        heads = [_head(fed.task, y[:p]) for y in upload.models]
        weight = torch.stack([w for w, _ in heads])  # [A, C, F]
        bias = torch.stack([w.new_zeros(len(w)) if b is None else b for w, b in heads])  # [A, C]
        share = upload.counts / upload.counts.sum(0).clamp_min(1)  # [A, C]
        present = upload.counts.sum(0).nonzero().squeeze(1).cpu().numpy()
        rng, optimizer = generator(fed.seed, Purpose.SERVER_BATCHES, fed.round), self._optimizer()
        params, buffers = state.generator[: task.num_params].clone(), state.generator[task.num_params :]
        slots, losses = tuple(s.clone() for s in state.slots), []
        for t in range(state.steps, state.steps + self.steps):
            y = torch.from_numpy(rng.choice(present, self.batch_size)).to(task.device)
            noise = torch.from_numpy(rng.random((self.batch_size, self.noise_size))).to(params)
            inputs = torch.cat([noise, _one_hot(y, fed.task)], 1)
            task.mode(True)
            leaf = params.detach().requires_grad_()
            model = Model(task, leaf, buffers)
            features = model(inputs)
            logits = torch.einsum("bf,acf->abc", features, weight) + bias.unsqueeze(1)
            errors = F.cross_entropy(logits.flatten(0, 1), y.repeat(clients), reduction="none").view(clients, -1)
            taught = (share[:, y] * errors).mean(1).sum()
            loss = taught + self.eta * _sameness(noise, features)
            (g,) = torch.autograd.grad(loss, leaf)
            buffers = model.buffers.detach()
            optimizer.step(params, g, slots, self.lr * self.lr_decay**fed.round, t)
            fed.metrics.count_server_flops(self.batch_size * (task.flops(inputs).step + 4 * weight.numel()))
            losses.append(float(taught.detach()))
        fed.metrics.report(**({"teacher_loss_first": losses[0], "teacher_loss_last": losses[-1]} if losses else {}))
        return State(state.params, torch.cat([params, buffers]), slots, state.steps + self.steps)

    def _generator(self, task: Task) -> Task:
        """The generator's family of models: noise and a one-hot label to what enters the classifier."""
        classes, features = task.num_classes, _classifier(task).num_features

        def build() -> nn.Module:
            first, last = nn.Linear(self.noise_size + classes, self.hidden), nn.Linear(self.hidden, features)
            return nn.Sequential(first, nn.BatchNorm1d(self.hidden), nn.ReLU(), last)

        return Task(build, classes, normalize=Normalize(None, None), device=task.device, dtype=task.dtype)

    def _generate(self, task: Task, w: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """(noise [n, z], labels [n]) -> features [n, F], of a generator [G] in evaluation mode."""
        made = self._generator(task)
        made.mode(False)
        values = made.views(w[: made.num_params]) | made.buffer_views(w[made.num_params :])
        return lambda noise, labels: made.forward(values, torch.cat([noise, _one_hot(labels, task)], 1))

    def _optimizer(self) -> Adam:
        return Adam(0.9, 0.999, 1e-8, self.weight_decay, decoupled=False)

    def operations(self, fed: Federation, local: float) -> float:
        task, classifier = self._generator(fed.task), _classifier(fed.task)
        weights = fed.task.num_classes * classifier.num_features
        generator = 6 * task.num_params + 4 * fed.cohort_size * weights
        return local + self.steps * self.batch_size * generator

    def models(self, state: State) -> Tensor:
        return state.params


def _classifier(task: Task) -> Classifier:
    if task.classifier is None:
        raise UserError("algorithm=fedgen needs a model that ends in a linear classifier, and trains it")
    return task.classifier


def _head(task: Task, params: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight [C, F] and bias [C] of the classifier of a model with these parameters [P]."""
    named, name = task.views(params), _classifier(task).name
    return named[f"{name}.weight"], named.get(f"{name}.bias")


def _one_hot(labels: Tensor, task: Task) -> Tensor:
    return torch.eye(task.num_classes, dtype=task.dtype, device=task.device)[labels]


def _sameness(noise: Tensor, features: Tensor) -> Tensor:
    """exp(-mean over pairs of |noise - noise'|^2 |features - features'|_1, each a mean over its entries)."""
    apart = torch.cdist(noise, noise).square() / noise.shape[1]
    return torch.exp(-(apart * torch.cdist(features, features, p=1) / features.shape[1]).mean())
