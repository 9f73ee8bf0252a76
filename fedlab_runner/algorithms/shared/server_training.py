"""Training of the server model on the server's own examples."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Params
from fedlab_runner.algorithms.shared.server_batches import server_steps
from fedlab_runner.algorithms.shared.server_gradient import Batches, server_gradient
from fedlab_runner.core.additions import Loss
from fedlab_runner.core.algorithm import ServerAlgorithm, Upload
from fedlab_runner.core.client_data import ClientData, Streams
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.global_rng import own_generators
from fedlab_runner.core.model_family import Flops
from fedlab_runner.core.optimizer import Adam, Optimizer, zero_slots
from fedlab_runner.core.rng import Purpose, torch_seed
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.core.work import Work, clip_rows
from fedlab_runner.executors.team import team
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import above, at_least

SERVER_STREAMS = Streams(Purpose.SERVER_BATCHES, Purpose.SERVER_DROPOUT)  # the random numbers of training on the server
ADAM = Adam(0.9, 0.999, 1e-8, 0.0, decoupled=False)  # the server's optimiser (Feddle, appendix D)


class TrainedModel(NamedTuple):
    """A model [D] after training, and its optimiser's slots."""

    model: Tensor
    slots: tuple[Tensor, ...]


class ServerDataAlgorithm(ServerAlgorithm[Params, Upload], Generic[Upload]):
    """The base of algorithms whose server keeps only its model and needs examples of its own."""

    in_domain: ClassVar[bool] = False
    """Whether the examples must be of the clients' classes."""

    def check(self, fed: Federation) -> None:
        require_server_data(self, fed, in_domain=self.in_domain)
        self.operations(fed, 0.0)  # of its minibatches, if these have a size that can be trained on

    def init(self, fed: Federation) -> Params:
        self.check(fed)
        return Params(fed.family.init(fed.seed))


def check_server_training(lr: float, epochs: int, batch_size: int, max_steps: int | None) -> None:
    """Raises ValueError, which begins with the field's name, for a value out of range."""
    above(0, lr=lr)
    at_least(0, epochs=epochs, max_steps=max_steps)
    at_least(1, batch_size=batch_size)


def require_server_data(algorithm: Any, fed: Federation, *, in_domain: bool = False) -> ServerData:
    """The server's data. Raises UserError if the server has none, or none in-domain although that is required."""
    name, data = algorithm.name, fed.server_data
    if data is None:
        choice = "server_data=in_domain" if in_domain else "server_data=in_domain (or tiny_imagenet, image_folder, ...)"
        raise UserError(f"algorithm={name} needs examples on the server: add {choice}")
    if in_domain and not data.in_domain:
        raise UserError(f"algorithm={name} trains on the clients' own classes: use server_data=in_domain")
    return data


def training_operations(
    fed: Federation, epochs: int, batch_size: int, max_steps: int | None, instead: dict[str, Tensor] | None = None
) -> float:
    """Floating-point operations of a step on each minibatch that `server_batches` gives for training."""
    return _seen(fed, epochs, batch_size, max_steps) * example_flops(fed, instead).step


def _seen(fed: Federation, epochs: int, batch_size: int, max_steps: int | None) -> int:
    n = 0 if fed.server_data is None else len(fed.server_data)
    return min(epochs * n, server_steps(fed, epochs, batch_size, max_steps) * batch_size)


def example_flops(fed: Federation, instead: dict[str, Tensor] | None = None) -> Flops:
    """A model's operations for one of the server's examples, with `instead` as in `ModelFamily.flops`."""
    assert fed.server_data is not None
    example = fed.family.normalize(fed.server_data.inputs[:1].to(fed.family.device), fed.family.dtype)
    return fed.family.flops(example, instead)


def train_on_server(
    fed: Federation,
    start: Tensor,
    batches: Batches,
    lr: float | Callable[[int], float],
    *,
    optimizer: Optimizer = ADAM,
    loss: Loss | None = None,
    clip_norm: float | None = None,
    slots: tuple[Tensor, ...] | None = None,
    first_step: int = 0,
    params_of: Callable[[Tensor], Tensor] | None = None,
    watch: Callable[[int, Tensor], bool] | None = None,
) -> TrainedModel:
    """The model [D] after one step on each minibatch, from `start` [D].

    - `lr` may be a function of the step, which counts from `first_step`.
    - `loss(model, batch)`, also a mean over the examples, replaces the family's loss.
    - `slots` is the optimiser's state to continue from (None: fresh).
    - `params_of` computes the parameters [P] from the trained values, which precede the buffers in `start`.
    - `watch(steps, model)` is called after each step, with the number of steps so far; True ends the training.
    """
    family, p, count = fed.family, fed.family.num_params, len(start) - fed.family.num_buffers
    w = torch.cat([start.new_zeros(p), start[count:]])
    values = w[:p].copy_(start[:count]) if params_of is None else start[:count].clone()
    slots = zero_slots(optimizer, values) if slots is None else tuple(s.clone() for s in slots)
    own = own_generators(family.device, torch_seed(fed.seed, Purpose.SERVER_DROPOUT, fed.round))
    with own, team() as its, server_gradient(fed, w, its, len(batches)) as gradient:
        for t, batch in enumerate(batches, first_step):
            if params_of is None:
                g, _ = gradient(batch, loss)
            else:
                params = params_of(leaf := values.detach().requires_grad_())
                w[:p].copy_(params.detach())
                (g,) = torch.autograd.grad(params, leaf, gradient(batch, loss)[0])
            if clip_norm is not None:
                g = clip_rows(g, clip_norm)
            its.each_range(partial(_move, optimizer, values, g, slots, lr(t) if callable(lr) else lr, t), count)
            fed.metrics.count_server_flops(len(batch.mask) * family.flops(batch.inputs).step)
            if watch is not None and watch(t + 1, torch.cat([values, w[p:]])):
                break
    return TrainedModel(w if params_of is None else torch.cat([values, w[p:]]), slots)


def _move(optimizer: Optimizer, w: Tensor, g: Tensor, slots: tuple[Tensor, ...], lr: float, t: int, its: slice) -> None:
    """An element-wise optimiser's step for some of the parameters."""
    optimizer.step(w[its], g[its], tuple(slot[its] for slot in slots), lr, t)


def train_as_client(fed: Federation, start: Tensor) -> Tensor:
    """The model [D] that a client with the server's examples would train, with the clients' optimiser and epochs."""
    data, family = fed.server_data, fed.family
    assert data is not None
    everyone = [np.arange(len(data))]
    client_data = ClientData(data.inputs, data.targets, everyone, family.device, SERVER_STREAMS)
    ids = np.zeros(1, dtype=np.int64)
    work = Work(
        family=family,
        client_data=client_data,
        ids=ids,
        num_steps=client_data.num_steps(ids, fed.local, family.has_batch_norm),
        local=fed.local,
        lr=fed.lr,
        seed=fed.seed,
        round=fed.round,
        start=start,
    )
    y, _ = fed.executor.train(work)
    examples = int(work.plan(ids).sizes.sum())
    if examples:
        fed.metrics.count_server_flops(examples * family.flops(family.normalize(data.inputs[:1], family.dtype)).step)
    return y[0]
