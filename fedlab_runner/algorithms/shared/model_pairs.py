"""The loss of pairs of models that learn from each other on one client's examples."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch, FunctionalModel


@dataclass(frozen=True)
class PairLoss:
    """The sum of both models' losses. Each is a weighted sum of the loss on the labels and KL(other || own).

    The other model's predictions are constants, so that each model gets the gradient of its own loss alone.
    """

    label_weights: tuple[float, float]
    kl_weights: tuple[float, float]

    def __call__(self, model: FunctionalModel, batch: Batch) -> Tensor:
        logits: Tensor = model(batch.inputs)  # [2, b, C]
        log_p = F.log_softmax(logits, -1)
        q = log_p.detach().flip(0)
        by_sample = torch.stack([losses(z, batch.targets, batch.offsets) for z in logits])
        kl = (q.exp() * (q - log_p)).sum(-1)
        both = logits.new_tensor(self.label_weights) @ by_sample + logits.new_tensor(self.kl_weights) @ kl
        return batch.mean(both)
