"""The loss of pairs of models that learn from each other on one client's examples."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch, FunctionalModel


def pair_loss(
    model: FunctionalModel, batch: Batch, label_weights: tuple[float, float], kl_weights: tuple[float, float]
) -> Tensor:
    """The sum of both models' losses: each weighs its loss on the labels and KL(other || own).

    The other model's predictions are constants: each model has the gradient of its own loss alone.
    """
    logits: Tensor = model(batch.inputs)  # [2, b, C]
    log_p = F.log_softmax(logits, -1)
    q = log_p.detach().flip(0)
    by_sample = torch.stack([losses(z, batch.targets, batch.offsets) for z in logits])
    kl = (q.exp() * (q - log_p)).sum(-1)
    both = logits.new_tensor(label_weights) @ by_sample + logits.new_tensor(kl_weights) @ kl
    return batch.mean(both)
