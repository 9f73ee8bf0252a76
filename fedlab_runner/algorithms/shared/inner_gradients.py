"""Gradients inside a loss, for clients whose step does not follow the gradient of the loss at their own parameters."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.transforms import computes_plainly
from fedlab_runner.core.work import gradient_of


class Gradient(NamedTuple):
    """The gradient of the family's loss on a minibatch, at some parameters. Autograd does not pass through it."""

    g: Tensor  # [P]
    loss: Tensor  # []
    buffers: Tensor  # [B], after the minibatch


def gradient(model: FunctionalModel, params: Tensor, batch: Batch) -> Gradient:
    """The gradient at `params` [P] instead of the model's own parameters, with the model's buffers."""

    def objective(w: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        there = FunctionalModel(model.family, w, model.buffers)
        value = model.family.loss(there, batch)
        return value, (value, there.buffers)

    plain = computes_plainly()  # autograd knows no transforms
    of = gradient_of(objective) if plain else torch.func.grad(objective, has_aux=True)
    g, (loss, buffers) = of(params.detach())
    return Gradient(g, loss.detach(), buffers.detach())


def along(model: FunctionalModel, direction: Tensor, value: Tensor) -> Tensor:
    """A loss of this `value` [] whose gradient at the model's parameters is `direction` [P]."""
    nothing = model.params - model.params.detach()
    return value + direction.detach() @ nothing
