"""Each client's gradient of its mean loss, as an epoch of local training during which its model does not move."""

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.work import Work


def gradient_pass(
    family: ModelFamily,
    client_data: ClientData,
    ids: np.ndarray,
    local: LocalTraining,
    seed: int,
    round: int,
    at: Tensor,
    steps: int | None = None,
) -> Work:
    """The work whose result for client `ids[k]` is minus a gradient: at the model `at` [D] or [K, D], of the client's
    mean loss over its examples, or over those in its first `steps` minibatches of the round, without weight decay or
    clipping. Batch norm's statistics are those of the pass.
    """
    p, plain = family.num_params, local.plain(steps)
    num_steps = client_data.num_steps(ids, plain, family.has_batch_norm)
    seen = client_data.examples_seen(ids, plain, family.has_batch_norm)
    start = at.clone()
    start[..., :p] = 0  # from zero, the distance is the gradient to the last bit
    share = 1 / torch.from_numpy(seen).to(at)
    own: tuple[Tensor, ...] = (share,) if at.dim() == 1 else (share, at[:, :p])
    common = (at[:p],) if at.dim() == 1 else ()
    lr = 1.0  # the round's own rate may be zero
    of = family, client_data, ids, num_steps, plain, lr, seed, round, start
    return Work(*of, loss=_part, per_client=own, common=common)


def _part(model: FunctionalModel, batch: Batch, share: Tensor, origin: Tensor) -> Tensor:
    """A minibatch's part of the mean loss, at `origin` [P] instead of the current parameters."""
    model.params = origin + (model.params - model.params.detach())
    return model.family.loss(model, batch) * batch.mask.sum() * share
