"""What an algorithm may add to local steps, as functions of a module that read nothing but their arguments."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.rng import Purpose, generators
from fedlab_runner.core.work import Work


@dataclass(frozen=True)
class Pulled:
    mu: float

    def __call__(self, w: Tensor, own: Tensor, anchor: Tensor, factor: Tensor) -> Tensor:
        return self.mu * factor * (w - anchor).square().sum() + (own * w).sum()


class PulledByHand(Pulled):
    def gradient(self, w: Tensor, own: Tensor, anchor: Tensor, factor: Tensor) -> Tensor:
        return 2 * self.mu * factor * (w - anchor) + own


def corrected(g: Tensor, own: Tensor, anchor: Tensor, factor: Tensor) -> Tensor:
    return g - own + factor * anchor


def perturbed(g: Tensor, own: Tensor, anchor: Tensor, factor: Tensor) -> Tensor:
    return 0.1 * g + 0.01 * own


def scaled(model: FunctionalModel, batch: Batch, noise: Tensor, factor: Tensor) -> Tensor:
    return factor * model.family.loss(model, batch) + (noise * model.params[: len(noise)]).sum()


def draws(work: Work, rows: np.ndarray, step: int) -> tuple[Tensor, ...]:
    rngs = generators(work.seed, Purpose.ALGORITHM, work.round, work.ids[rows], step)
    return (torch.stack([torch.from_numpy(rng.random(5)) for rng in rngs]),)


def data(fed: Federation, clients: int, factor: float = 0.3) -> dict[str, Any]:
    """The data of the first three, for a cohort of so many clients."""
    x = fed.family.init(3)[: fed.family.num_params]
    own = torch.linspace(-0.2, 0.2, clients * len(x), dtype=x.dtype).view(clients, -1)
    return {"per_client": (own,), "common": (x, x.new_tensor(factor))}


# By name, what is added at once; a penalty, a correction and a move take the same data.
ADDED: dict[str, dict[str, Any]] = {
    "penalty": {"penalty": Pulled(0.1)},
    "correction": {"correct": corrected},
    "move": {"perturb": perturbed},
    "all": {"penalty": PulledByHand(0.1), "correct": corrected, "perturb": perturbed},
}
