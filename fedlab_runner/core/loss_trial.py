"""Tries an algorithm's own loss before clients train with it."""

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.global_rng import kept_globals, own_generators
from fedlab_runner.core.work import Work
from fedlab_runner.utils.contract import in_words
from fedlab_runner.utils.errors import UserError

NEAR = 0.01  # a model that starts at zero gives every class the same loss: so far from it are the parameters tried
TOLERANCE = 1e-4  # relative to a loss
RIGHT = 'batch.mean(losses) of losses [b], such as F.cross_entropy(..., reduction="none")'  # what a loss gives


def try_loss(work: Work) -> None:
    """Computes the work's own loss on a minibatch of the first client, of which one example counts. It leaves the
    model, and all generators, as they were.

    Raises UserError if the loss is no scalar, or if other examples that do not count change it.
    """
    family, one = work.family, work.select(np.flatnonzero(work.num_steps)[:1])
    index = one.plan(np.arange(1)).indices[0, 0]
    if work.per_step is None:  # else its tensors may have a row for each example
        index = index[:3]
    mask = (torch.arange(len(index), device=index.device) < 1).to(family.dtype)
    family.mode(True)
    params, buffers = (part[0] for part in one.start_of(np.arange(1)))
    own = (*(t[0] for t in one.own(np.arange(1), 0)), *work.common)

    def value(examples: Tensor, shift: int) -> Tensor:
        inputs, targets = work.client_data.minibatch(examples)
        targets = torch.where(mask > 0, targets, (targets + shift) % family.num_classes)
        with kept_globals(), own_generators(family.device, 0):
            near = (params + NEAR * torch.randn_like(params)).requires_grad_()
            batch = family.batch(inputs, targets, mask)
            found, _ = one.objective(penalized=False)(near, buffers.clone(), *batch[:3], *own)
        if found.dim():
            raise UserError(f"{_name(work.loss)} must give a scalar, {RIGHT}, got {in_words(found.detach())}")
        return found.detach()

    first, second = value(index, 0), value(index[:1].expand_as(index), 1)
    # A family that mixes examples has no filled minibatches.
    if not family.mixes and bool((first - second).abs() > TOLERANCE * first.abs()):
        raise UserError(
            f"{_name(work.loss)} counts examples that only fill up a minibatch (where batch.mask is 0): it must give "
            f"{RIGHT}"
        )


def _name(loss: object) -> str:
    return str(getattr(loss, "__qualname__", type(loss).__qualname__))
