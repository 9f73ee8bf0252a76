"""FedGEN (Zhu, Hong and Zhou, ICML 2021): data-free distillation by a generator. https://arxiv.org/abs/2105.10056"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.algorithms.shared.averaging import all_discarded, average, check_averaging, in_time, make_update
from fedlab_runner.algorithms.shared.classifier_head import head_logits, head_of
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.classifier import Classifier
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.core.optimizer import Adam, zero_slots
from fedlab_runner.core.rng import Purpose, generator, generators, torch_seed
from fedlab_runner.core.updates import Updates
from fedlab_runner.core.work import Work
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import above, at_least, within

# The generators' families by their sizes. Worker processes need the same object in every round.
_generators: WeakKeyDictionary[ModelFamily, dict[tuple[int, int], ModelFamily]] = WeakKeyDictionary()
MIN_WEIGHT = 1e-4  # the value at which alpha and beta stop falling (the authors' code)


class FedGENUpload(NamedTuple):
    """The client's update, its model, which the server computes from the update, and its label counts."""

    rows: Tensor  # y - x or y [K, P]
    statistics: Tensor  # of batch norm, as they are [K, B]
    models: Tensor  # y [K, D]
    counts: Tensor  # [K, C]


class FedGENState(NamedTuple):
    """The server's model, its generator and the state of the generator's Adam."""

    params: Tensor  # x [D]
    generator: Tensor  # parameters, then batch norm statistics [G]
    slots: tuple[Tensor, ...]  # of the generator's parameters
    steps: int  # for which the generator was trained


@dataclass(frozen=True)
class _Taught:
    """CE on the client's examples, plus alpha CE on `n` generated features, plus beta KL between both predictions."""

    generator: ModelFamily
    n: int

    def __call__(self, model: FunctionalModel, batch: Batch, *own: Tensor) -> Tensor:
        """`own` holds the tensors of `_Draws`, the generator's values [G], and the weights alpha and beta."""
        noise, labels, active, generator, alpha, beta = own
        logits, made = model(batch.inputs), self.generator
        y = torch.cat([labels, batch.targets])
        params, buffers = generator[: made.num_params], generator[made.num_params :]
        noisy = torch.cat([noise[: len(y)], _one_hot(y, model.family)], 1)
        guesses = head_logits(model.family, model.params, made.evaluate(params, buffers, noisy))
        invented = F.cross_entropy(guesses[: self.n], labels)
        wanted = F.softmax(guesses[self.n :], -1).detach()
        agreement = (torch.xlogy(wanted, wanted) - wanted * F.log_softmax(logits, -1)).sum(-1)  # KL
        value: Tensor = batch.mean(losses(logits, batch.targets, batch.offsets))
        return value + active * (alpha * invented + beta * batch.mean(agreement))


@dataclass(frozen=True)
class _Draws:
    """For each client and step: noise [k, n + b, z], for `n` drawn labels and then for the client's own labels; the
    drawn labels [k, n]; and whether the client still learns from the generator [k], which it does in its first
    `epochs`.
    """

    n: int
    noise_size: int
    epochs: int

    def __call__(self, work: Work, rows: np.ndarray, step: int) -> tuple[Tensor, ...]:
        family, n, ids = work.family, self.n, work.ids[rows]
        until = self.epochs * work.client_data.steps_per_epoch(ids, work.local, family.has_batch_norm)
        noise = np.empty((len(rows), n + work.local.batch_size, self.noise_size))
        labels = np.empty((len(rows), n), np.int64)
        for k, rng in enumerate(generators(work.seed, Purpose.ALGORITHM, work.round, ids, step)):
            labels[k] = rng.integers(family.num_classes, size=n)
            noise[k] = rng.random(noise[k].shape)
        arrays = (noise, family.dtype), (labels, torch.int64), (step < until, family.dtype)
        return tuple(torch.from_numpy(array).to(family.device, dtype) for array, dtype in arrays)


@dataclass(frozen=True)
class FedGEN(ServerAlgorithm[FedGENState, FedGENUpload]):
    """FedAvg whose server trains a generator of features, which are inputs of the models' classifier. Clients learn
    from these features too.

    The generator turns `noise_size` uniform numbers and a label into features; it has one hidden layer of `hidden`
    neurons. In each round it learns from `steps` minibatches of `batch_size` labels: the clients' classifiers should
    predict the label, and features should differ (`eta`). A client counts by its share of the label's examples. Adam
    has `weight_decay` and `lr`, which `lr_decay` multiplies every round.

    In their first `gen_epochs` epochs clients learn from `gen_batch_size` generated features too, with the weight
    `alpha`. With the weight `beta` they also learn the classifier's predictions on features generated for their own
    labels. `decay` multiplies both weights every round. `late_policy` and `weighting` are those of FedAvg.
    """

    known: ClassVar[tuple[str, ...]] = ("models",)
    payload_copies: ClassVar[int] = 2

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
        at_least(0, alpha=self.alpha, beta=self.beta, gen_epochs=self.gen_epochs, eta=self.eta, steps=self.steps)
        at_least(0, weight_decay=self.weight_decay)
        within("(0, 1]", decay=self.decay, lr_decay=self.lr_decay)
        at_least(1, gen_batch_size=self.gen_batch_size, noise_size=self.noise_size, hidden=self.hidden)
        at_least(2, batch_size=self.batch_size)
        above(0, lr=self.lr)
        check_averaging(self.late_policy, self.weighting, server_lr=1.0)

    def check(self, fed: Federation) -> None:
        head = _classifier(fed.family)
        if bool((fed.home.mask(fed.family) & fed.family.segments(head.name)).any()):
            raise UserError(
                "home must keep no part of the classifier with algorithm=fedgen, whose server learns from the clients' "
                "classifiers: take home=body, norm or none"
            )

    def init(self, fed: Federation) -> FedGENState:
        self.check(fed)
        family = self._generator(fed.family)
        # 48 bits. Clients draw from this purpose in later rounds only.
        seed = torch_seed(fed.seed, Purpose.ALGORITHM) >> 15
        start = family.init(seed)
        return FedGENState(
            fed.family.init(fed.seed), start, zero_slots(self._optimizer(), start[: family.num_params]), 0
        )

    def broadcast(self, state: FedGENState) -> Sequence[Tensor]:
        return state.params, state.generator

    def client_update(self, state: FedGENState, cohort: Cohort) -> FedGENUpload:
        x = state.params
        y = self._learn(state, cohort) if state.steps and (self.alpha or self.beta) else cohort.train(x)
        return FedGENUpload(
            *make_update(cohort.family, x, y, self.late_policy, keep=True), y, cohort.label_counts.to(x)
        )

    def _learn(self, state: FedGENState, cohort: Cohort) -> Tensor:
        """The clients' models [K, D], taught by the generator."""
        n = self.gen_batch_size
        alpha, beta = (min(w, max(MIN_WEIGHT, w * self.decay**cohort.round)) for w in (self.alpha, self.beta))
        weights = (state.params.new_tensor(weight) for weight in (n / cohort.local.batch_size * alpha, beta))
        loss, draws = _Taught(self._generator(cohort.family), n), _Draws(n, self.noise_size, self.gen_epochs)
        return cohort.train(state.params, loss=loss, per_step=draws, common=(state.generator, *weights))

    def server_step(self, state: FedGENState, arrivals: Updates[FedGENUpload], fed: Federation) -> FedGENState:
        arrivals = in_time(arrivals, self.late_policy)
        if not len(arrivals):
            return state
        x = average(state.params, arrivals, self.late_policy, self.weighting, server_lr=1.0)
        return self._train_generator(fed, state, arrivals.upload)._replace(params=x)

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving)

    def _train_generator(self, fed: Federation, state: FedGENState, upload: FedGENUpload) -> FedGENState:
        """The State with the generator after its steps of this round; the diversity loss is the authors' code's."""
        family, p, clients = self._generator(fed.family), fed.family.num_params, len(upload.models)
        heads = [head_of(fed.family, y[:p]) for y in upload.models]
        weight = torch.stack([w for w, _ in heads])  # [A, C, F]
        bias = torch.stack([w.new_zeros(len(w)) if b is None else b for w, b in heads])  # [A, C]
        share = upload.counts / upload.counts.sum(0).clamp_min(1)  # [A, C]
        present = upload.counts.sum(0).nonzero().squeeze(1).cpu().numpy()
        rng, optimizer = generator(fed.seed, Purpose.SERVER_BATCHES, fed.round), self._optimizer()
        params, buffers = state.generator[: family.num_params].clone(), state.generator[family.num_params :]
        slots, losses = tuple(s.clone() for s in state.slots), []
        for t in range(state.steps, state.steps + self.steps):
            y = torch.from_numpy(rng.choice(present, self.batch_size)).to(family.device)
            noise = torch.from_numpy(rng.random((self.batch_size, self.noise_size))).to(params)
            inputs = torch.cat([noise, _one_hot(y, fed.family)], 1)
            family.mode(True)
            leaf = params.detach().requires_grad_()
            model = FunctionalModel(family, leaf, buffers)
            features = model(inputs)
            logits = torch.einsum("bf,acf->abc", features, weight) + bias.unsqueeze(1)
            errors = F.cross_entropy(logits.flatten(0, 1), y.repeat(clients), reduction="none").view(clients, -1)
            taught = (share[:, y] * errors).mean(1).sum()
            loss = taught + self.eta * _sameness(noise, features)
            (g,) = torch.autograd.grad(loss, leaf)
            buffers = model.buffers.detach()
            optimizer.step(params, g, slots, self.lr * self.lr_decay**fed.round, t)
            fed.metrics.count_server_flops(self.batch_size * (family.flops(inputs).step + 4 * weight.numel()))
            losses.append(float(taught.detach()))
        fed.metrics.report(**({"teacher_loss_first": losses[0], "teacher_loss_last": losses[-1]} if losses else {}))
        return FedGENState(state.params, torch.cat([params, buffers]), slots, state.steps + self.steps)

    def _generator(self, family: ModelFamily) -> ModelFamily:
        """The generator's model family: from noise and a one-hot label to the inputs of the classifier."""
        made, key = _generators.setdefault(family, {}), (self.noise_size, self.hidden)
        if key not in made:
            made[key] = self._new_generator(family)
        return made[key]

    def _new_generator(self, family: ModelFamily) -> ModelFamily:
        classes, features = family.num_classes, _classifier(family).num_features

        def build() -> nn.Module:
            first, last = nn.Linear(self.noise_size + classes, self.hidden), nn.Linear(self.hidden, features)
            return nn.Sequential(first, nn.BatchNorm1d(self.hidden), nn.ReLU(), last)

        return ModelFamily(build, classes, normalize=Normalize(None, None), device=family.device, dtype=family.dtype)

    def _optimizer(self) -> Adam:
        return Adam(0.9, 0.999, 1e-8, self.weight_decay, decoupled=False)

    def operations(self, fed: Federation, local: float) -> float:
        family, classifier = self._generator(fed.family), _classifier(fed.family)
        weights = fed.family.num_classes * classifier.num_features
        generator = 6 * family.num_params + 4 * fed.cohort_size * weights
        return local + self.steps * self.batch_size * generator


def _classifier(family: ModelFamily) -> Classifier:
    if family.classifier is None or not family.classifier.direct:
        raise UserError(
            "algorithm=fedgen needs a model that ends in a linear classifier, which it trains and forward() calls as "
            "an nn.Linear module"
        )
    return family.classifier


def _one_hot(labels: Tensor, family: ModelFamily) -> Tensor:
    return torch.eye(family.num_classes, dtype=family.dtype, device=family.device)[labels]


def _sameness(noise: Tensor, features: Tensor) -> Tensor:
    """exp(-mean over pairs of |noise - noise'|^2 |features - features'|_1, each a mean over its entries)."""
    apart = torch.cdist(noise, noise).square() / noise.shape[1]
    return torch.exp(-(apart * torch.cdist(features, features, p=1) / features.shape[1]).mean())
