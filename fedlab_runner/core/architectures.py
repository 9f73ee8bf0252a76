"""Clients with models of A different architectures: client i has architecture i modulo A."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.models.base import Architecture, built


class ClientGroup(NamedTuple):
    """Clients that hold models of one architecture."""

    architecture: int
    family: ModelFamily
    ids: np.ndarray  # [k]


def by_architecture(families: Sequence[ModelFamily], ids: np.ndarray) -> list[ClientGroup]:
    """Groups the clients `ids` by architecture, in ascending order of architectures; clients in the order of `ids`."""
    groups = [(a, family, ids[ids % len(families) == a]) for a, family in enumerate(families)]
    return [ClientGroup(a, family, of_a) for a, family, of_a in groups if len(of_a)]


def shape_of(inputs: Tensor) -> tuple[int, int]:
    """(channels, side) of stored inputs [n, c, s, s]; features [n, c] count as images of side 1."""
    return (inputs.shape[1], inputs.shape[2]) if inputs.dim() == 4 else (inputs.shape[1], 1)


def family_of(architecture: Architecture, like: ModelFamily, inputs: Tensor) -> ModelFamily:
    """The model family of another architecture on the data of `like`, whose stored examples are `inputs` [n, ...]."""
    channels, image_size = shape_of(inputs)
    return like.like(lambda: built(architecture, channels, image_size, like.num_classes))
