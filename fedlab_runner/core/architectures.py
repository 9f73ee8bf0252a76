"""Clients whose models have different architectures: client i has number i modulo their number A.

All models of one architecture are a stack [N_a, D_a], in which client i is row i // A.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.models.base import Architecture


class ClientGroup(NamedTuple):
    """Clients that hold models of one architecture."""

    architecture: int
    family: ModelFamily
    ids: np.ndarray  # [k]
    rows: Tensor  # [k], their rows in the stack of the architecture


def by_architecture(families: Sequence[ModelFamily], ids: np.ndarray) -> list[ClientGroup]:
    """Clients `ids` by architecture, in their order; only architectures that occur."""
    groups = [(a, family, ids[ids % len(families) == a]) for a, family in enumerate(families)]
    return [
        ClientGroup(a, family, of_a, torch.from_numpy(of_a // len(families)).to(family.device))
        for a, family, of_a in groups
        if len(of_a)
    ]


def shape_of(inputs: Tensor) -> tuple[int, int]:
    """The channels and the side of stored inputs [n, c, s, s]; features [n, c] are images of size 1."""
    return (inputs.shape[1], inputs.shape[2]) if inputs.dim() == 4 else (inputs.shape[1], 1)


def family_of(model: Architecture, like: ModelFamily, inputs: Tensor) -> ModelFamily:
    """The models of another architecture on the same data, of which `inputs` [n, ...] are stored examples."""
    channels, image_size = shape_of(inputs)
    return like.like(lambda: model.build(channels, image_size, like.num_classes))
