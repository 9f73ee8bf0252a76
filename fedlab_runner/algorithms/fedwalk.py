"""FedWalk (Zhai, Gao, Ma, Zou, Ye and Jiang, 2024), Algorithm 1: classes of the server's own as a leash for clients."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.classifier_head import named_head, new_head, require_body
from fedlab_runner.algorithms.shared.server_batches import ServerBatches, server_batches
from fedlab_runner.core.algorithm import Algorithm, ServerAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint
from fedlab_runner.core.global_rng import own_generators
from fedlab_runner.core.model_family import FunctionalModel
from fedlab_runner.core.optimizer import SGD
from fedlab_runner.core.rng import Purpose, torch_seed
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of, within

LEASH_SGD = SGD(momentum=0.0, nesterov=False, weight_decay=0.0)  # the optimiser of leash updates: plain SGD
BASE = "algorithm.base."  # prefix of the keys of the base's fields
UNITS = ("epoch", "step")  # values of the field `unit`
EXAMPLES_PER_CALL = 500  # of the auxiliary data in evaluation: a bound on memory


class FedWalkState(NamedTuple):
    """The base's State, the server's classifier of the auxiliary classes, and the two losses of the log loss ratio."""

    base: Any
    head: Tensor  # [C' (F + 1)] for C' auxiliary classes and F features
    client_loss: float  # L^c, smoothed; 0 before the first report
    leash_loss: float  # L^s after the last leash update; infinite before the first


@dataclass(frozen=True)
class FedWalk(Algorithm[FedWalkState]):
    """Any algorithm with a server (`base`), whose server also trains its model on auxiliary data, the leash. It does so
    in rounds in which the loss on that data is large compared with the clients' loss.

    After each round of the base the server takes `steps` (T_s, in `unit`s: epoch, step) of plain SGD on the auxiliary
    data if log2(L^c / L^s) < `tau`. L^c is the mean loss of the trained models that clients report, smoothed by `beta`.
    L^s is the loss on the auxiliary data after the last such update. The auxiliary classes have a classifier of their
    own on the shared body. SGD has `lr` (gamma; null: the clients' current rate) and `batch_size`. With
    `move_statistics` its minibatches update batch norm's statistics.

    `pretrain` (0: off) is the paper's comparison: the server makes the leash updates of `pretrain` rounds before the
    first round and none later.
    """

    makes_server_steps: ClassVar[bool] = True  # those of the base; the leash is not a server step

    base: ServerAlgorithm[Any, Any]
    tau: float
    beta: float
    unit: str
    steps: int
    lr: float | None
    batch_size: int
    move_statistics: bool
    pretrain: int

    def __post_init__(self) -> None:
        within("[0, 1)", beta=self.beta)
        one_of(UNITS, unit=self.unit)
        at_least(0, lr=self.lr, steps=self.steps, pretrain=self.pretrain)
        at_least(1, batch_size=self.batch_size)

    def check(self, fed: Federation) -> None:
        require_body("algorithm=fedwalk", fed.family, _auxiliary_data(fed))
        self._batches(fed, self.steps)  # if there are examples, and minibatches of a size that can be trained on
        try:
            self.base.check(fed)
        except UserError as error:
            line = str(error).replace("algorithm.", BASE)
            raise UserError(line.replace("algorithm=", "algorithm@algorithm.base=", 1)) from error
        except ValueError as error:
            raise ValueError(f"base.{error}") from error

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        found: Footprint = self.base.footprint(fed, load)
        names = [(h.what.replace("algorithm.", BASE), h.remedy.replace("algorithm.", BASE)) for h in found.held]
        held = [h._replace(what=what, remedy=way) for h, (what, way) in zip(found.held, names, strict=True)]
        return found._replace(held=held)

    def init(self, fed: Federation) -> FedWalkState:
        data = _auxiliary_data(fed)
        head = new_head(fed.family, require_body("algorithm=fedwalk", fed.family, data), data.num_classes, fed.seed)
        return FedWalkState(self.base.init(fed), head, 0.0, math.inf)

    def round(self, state: FedWalkState, fed: Federation) -> FedWalkState:
        base, head, client_loss, leash_loss = state
        if self.pretrain and fed.round == 0:
            base, head = self._leash(base, head, fed, self.pretrain * self.steps)
        fed.report_losses()
        base = self.base.round(base, fed)  # lines 2 to 8
        if fed.arrived_losses:
            mean = math.fsum(fed.arrived_losses) / len(fed.arrived_losses)
            client_loss = self.beta * client_loss + (1 - self.beta) * mean
        ratio = log_ratio(client_loss, leash_loss)
        leashed = not self.pretrain and self.steps > 0 and ratio < self.tau  # line 10
        if leashed:
            base, head = self._leash(base, head, fed, self.steps)
            leash_loss = self._loss(fed, self.base.server_model(base), head)  # line 15
        fed.metrics.report(leashed=int(leashed), client_loss=client_loss)
        finite = {"log_loss_ratio": ratio, "leash_loss": leash_loss}
        fed.metrics.report(**{name: value for name, value in finite.items() if math.isfinite(value)})
        after = FedWalkState(base, head, client_loss, leash_loss)
        fed.record_server_cache(self.cached(after))
        return after

    def _leash(self, base: Any, head: Tensor, fed: Federation, steps: int) -> tuple[Any, Tensor]:
        """The base's State and the head after `steps` units on the auxiliary data (lines 11 to 14)."""
        model, head = self._train(fed, self.base.server_model(base), head, steps)
        return self.base.with_server_model(base, model), head

    def _train(self, fed: Federation, start: Tensor, head: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """The model [D] and the head after SGD on the auxiliary data. The model's own classifier does not change."""
        family, lr = fed.family, fed.lr if self.lr is None else self.lr
        p = family.num_params
        values, buffers = torch.cat([start[:p], head]), start[p:]
        with own_generators(family.device, torch_seed(fed.seed, Purpose.AUXILIARY_DROPOUT, fed.round)):
            for t, batch in enumerate(self._batches(fed, steps)):
                family.mode(True, frozen_norm=len(batch.mask) == 1)
                leaf = values.detach().requires_grad_()
                model = FunctionalModel(family, leaf[:p], buffers)
                named = named_head(family, leaf[p:])
                fed.metrics.count_server_flops(len(batch.mask) * family.flops(batch.inputs, named).step)
                logits = model(batch.inputs, named)
                (g,) = torch.autograd.grad(F.cross_entropy(logits, batch.targets), leaf)
                buffers = model.buffers.detach()
                LEASH_SGD.step(values, g, (), lr, t)
        return torch.cat([values[:p], buffers if self.move_statistics else start[p:]]), values[p:].clone()

    def _batches(self, fed: Federation, steps: int) -> ServerBatches:
        most = steps if self.unit == "step" else None  # an epoch has at least one minibatch
        how: dict[str, Any] = {"data": _auxiliary_data(fed), "purpose": Purpose.AUXILIARY_BATCHES}
        return server_batches(fed, steps, self.batch_size, most, **how)

    @torch.no_grad()
    def _loss(self, fed: Federation, model: Tensor, head: Tensor) -> float:
        """L^s: the mean cross entropy over all auxiliary data, in evaluation mode."""
        family, data, p = fed.family, _auxiliary_data(fed), fed.family.num_params
        named, total = named_head(family, head), 0.0
        for inputs, targets in zip(
            *(torch.split(t, EXAMPLES_PER_CALL) for t in (data.inputs, data.targets)), strict=True
        ):
            normal = family.normalize(inputs, family.dtype)
            logits = family.evaluate(model[:p], model[p:], normal, named)
            total += float(F.cross_entropy(logits.double(), targets, reduction="sum"))
            fed.metrics.count_server_flops(len(targets) * family.flops(normal, named).forward)
        return total / len(data)

    def operations(self, fed: Federation, local: float) -> float:
        data, family = _auxiliary_data(fed), fed.family
        n, layer = len(data), require_body("algorithm=fedwalk", family, data)
        head = new_head(family, layer, data.num_classes, fed.seed)
        inputs = family.normalize(data.inputs[:1].to(family.device), family.dtype)
        example = family.flops(inputs, named_head(family, head.requires_grad_()))
        seen = self.steps * (min(n, self.batch_size) if self.unit == "step" else n)
        own: float = self.base.operations(fed, local)
        return own + seen * example.step + n * example.forward

    def models(self, state: FedWalkState) -> Tensor:
        models: Tensor = self.base.models(state.base)
        return models

    def client_models(self, state: FedWalkState, fed: Federation, ids: np.ndarray) -> Tensor:
        models: Tensor = self.base.client_models(state.base, fed, ids)
        return models

    def takes_aggregator(self) -> bool:
        return bool(self.base.takes_aggregator())

    def takes_sums(self) -> bool:
        return bool(self.base.takes_sums())

    def home_fault(self) -> str | None:
        fault: str | None = self.base.home_fault()
        return fault

    def trains_home(self) -> bool:
        return bool(self.base.trains_home())

    def cached(self, state: FedWalkState) -> int:
        return int(self.base.cached(state.base)) + state.head.numel()


def log_ratio(client_loss: float, leash_loss: float) -> float:
    """log2(L^c / L^s), Eq 7: +inf for a leash loss of 0; -inf for an infinite leash loss or a client loss of 0."""
    if leash_loss == 0:
        return math.inf
    if client_loss == 0 or math.isinf(leash_loss):
        return -math.inf
    return math.log2(client_loss / leash_loss)


def _auxiliary_data(fed: Federation) -> ServerData:
    if fed.auxiliary_data is None:
        choice = "server_data@auxiliary_data=tiny_imagenet (or imagenet_lh, image_folder, torchvision, ...)"
        raise UserError(f"algorithm=fedwalk needs auxiliary examples on the server: add {choice}")
    return fed.auxiliary_data
