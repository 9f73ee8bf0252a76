"""Clients whose models have different architectures: client i has number i modulo their number A.

All models of one architecture are a stack [N_a, D_a], in which client i is row i // A.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.model_family import Task
from fedlab_runner.models.base import Model


class Group(NamedTuple):
    """Clients that hold models of one architecture."""

    architecture: int
    task: Task
    ids: np.ndarray  # [k]
    rows: Tensor  # [k], their rows in the stack of the architecture


def by_architecture(tasks: Sequence[Task], ids: np.ndarray) -> list[Group]:
    """Clients `ids` by architecture, in their order; only architectures that occur."""
    groups = [(a, task, ids[ids % len(tasks) == a]) for a, task in enumerate(tasks)]
    return [
        Group(a, task, of_a, torch.from_numpy(of_a // len(tasks)).to(task.device))
        for a, task, of_a in groups
        if len(of_a)
    ]


def shape_of(inputs: Tensor) -> tuple[int, int]:
    """The channels and the side of stored inputs [n, c, s, s]; features [n, c] are images of size 1."""
    return (inputs.shape[1], inputs.shape[2]) if inputs.dim() == 4 else (inputs.shape[1], 1)


def family(model: Model, like: Task, inputs: Tensor) -> Task:
    """The models of another architecture on the same data, of which `inputs` [n, ...] are stored examples."""
    channels, image_size = shape_of(inputs)
    return like.like(lambda: model.build(channels, image_size, like.num_classes))
