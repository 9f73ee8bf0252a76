"""Pairs of models that learn from each other on one client's examples: one family whose vectors hold both."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily


class _Both(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.stack([self.first(inputs), self.second(inputs)])


class Pair:
    """Pairs of models of two families as models [k, D1 + D2] of one `family`, which any executor trains."""

    def __init__(self, first: ModelFamily, second: ModelFamily) -> None:
        self._first, self._second = first, second
        self.family = first.like(lambda: _Both(first.build(), second.build()))

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Models [k, D1] and [k, D2] as pairs [k, D1 + D2]: parameters first, as in every vector."""
        p, q = self._first.num_params, self._second.num_params
        return torch.cat([first[:, :p], second[:, :q], first[:, p:], second[:, q:]], 1)

    def part(self, joined: Tensor) -> tuple[Tensor, Tensor]:
        """The two models [k, D1] and [k, D2] of pairs [k, D1 + D2]."""
        first, second = self._first, self._second
        sizes = [first.num_params, second.num_params, first.num_buffers, second.num_buffers]
        p, q, b, c = torch.split(joined, sizes, 1)
        return torch.cat([p, b], 1), torch.cat([q, c], 1)


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
