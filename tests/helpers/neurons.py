"""Toy models whose neurons can change places, and copies of a model with its neurons in other orders."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from fedlab_runner.algorithms.matching.neurons import permute
from fedlab_runner.algorithms.matching.structure import neuron_groups
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.models.cnn_small import SmallCNN
from tests.helpers.toy import CLASSES, CPU, FEATURES, federation


def deep() -> nn.Module:
    """A chain of three layers with neurons, one of them with a norm."""
    return nn.Sequential(
        nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES)
    )


def residual() -> nn.Module:
    """A small network of torchvision's residual blocks."""
    reduce = nn.Sequential(nn.Conv2d(6, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
    blocks = [BasicBlock(6, 6), BasicBlock(6, 8, 2, reduce)]
    return nn.Sequential(nn.Conv2d(1, 6, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def cnn() -> nn.Module:
    return SmallCNN(None, None).build(1, 4, CLASSES)


def with_images(build: Callable[[], nn.Module], size: int) -> Federation:
    """A federation that is never trained: for server steps on made-up arrivals."""
    fed = federation([4])
    fed.family = ModelFamily(build, CLASSES, normalize=Normalize(None, None), device=CPU, dtype=torch.float64)
    inputs = torch.rand(4, 1, size, size, generator=torch.Generator().manual_seed(0))
    fed.trainer.client_data = ClientData(inputs, torch.zeros(4, dtype=torch.int64), [np.arange(4)], CPU)
    return fed


def copies(fed: Federation, n: int) -> tuple[Tensor, Tensor]:
    """A model [D], and it and n copies of it with all neurons in other orders [1 + n, D]."""
    groups, family = neuron_groups(fed.family, fed.client_data.inputs), fed.family
    w = family.init(5) + 0.1 * torch.rand(family.size, dtype=family.dtype, generator=torch.Generator().manual_seed(1))
    rows, rng = [w], np.random.default_rng(2)
    for _ in range(n):
        row = w
        for group in groups:
            row = permute(row, group, rng.permutation(group.size))
        rows.append(row)
    return w, torch.stack(rows)
