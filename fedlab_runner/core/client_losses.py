"""The loss of trained models on the examples of the clients that trained them."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.model_family import ModelFamily

# Clients, and examples of each, that one call evaluates: a bound on memory.
CLIENTS_PER_CALL, EXAMPLES_PER_CALL = 10, 100


@torch.no_grad()
def client_losses(family: ModelFamily, client_data: ClientData, ids: np.ndarray, models: Tensor) -> Tensor:
    """Each client's mean cross entropy [K] float64 on all its examples, in evaluation mode: that of its model (of
    `models` [K, D]), or of the one model [D] that all have. Zero for a client without examples.
    """
    sizes = client_data.num_examples[ids]
    losses = torch.zeros(len(ids), dtype=torch.float64, device=family.device)
    order = np.argsort(-sizes, kind="stable")  # clients of like size together: little padding
    at_once = 1 if family.alone else CLIENTS_PER_CALL
    for chunk in np.split(order, range(at_once, len(order), at_once)):
        rows = torch.from_numpy(chunk).to(family.device)
        losses[rows] = _chunk_losses(family, client_data, ids[chunk], models if models.dim() == 1 else models[rows])
    return losses


def _chunk_losses(family: ModelFamily, client_data: ClientData, ids: np.ndarray, models: Tensor) -> Tensor:
    sizes = client_data.num_examples[ids]
    own = models.dim() == 2
    params, buffers = models[..., : family.num_params], models[..., family.num_params :]

    def one(params: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(family.evaluate(params, buffers, inputs), targets, reduction="none")

    total = torch.zeros(len(ids), dtype=torch.float64, device=family.device)
    for begin in range(0, int(sizes.max(initial=0)), EXAMPLES_PER_CALL):
        present = int((sizes > begin).sum())  # the first clients: sizes fall
        width = min(EXAMPLES_PER_CALL, int(sizes[0]) - begin)
        index, mask = np.zeros((present, width), np.int64), np.zeros((present, width), bool)
        for k in range(present):
            part = client_data.members(int(ids[k]))[begin : begin + width]
            index[k, : len(part)], mask[k, : len(part)] = part, True
        chosen, counted = torch.from_numpy(index).to(family.device), torch.from_numpy(mask).to(family.device)
        inputs, targets = client_data.examples(chosen)
        inputs = family.normalize(inputs, family.dtype)
        if family.alone:  # a single client, without padding
            model = (params[0], buffers[0]) if own else (params, buffers)
            each = one(*model, inputs[0], targets[0]).unsqueeze(0)
        else:
            of_present = (params[:present], buffers[:present]) if own else (params, buffers)
            many = vmap(one, in_dims=(0, 0, 0, 0) if own else (None, None, 0, 0))  # one model: an ordinary minibatch
            each = many(*of_present, inputs, targets)
        # The mean leaves padding out instead of multiplying it by zero: the loss of padding may be infinite.
        total[:present] += each.double().where(counted, 0.0).sum(1)
    return total / torch.from_numpy(sizes).to(family.device).clamp_min(1)
