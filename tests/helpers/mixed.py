"""Toy architectures of several kinds and widths, and federations of clients that hold them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedlab_runner.core.federation import Federation
from fedlab_runner.core.own_models import models_of
from fedlab_runner.models._widths import Axis, Sliceable
from tests.helpers.toy import CLASSES, FEATURES, federation, mlp, normed

Build = Callable[[], nn.Module]


def sliceable(hidden: int, *, norm: bool = False) -> Build:
    """An MLP of two hidden layers that can be cut to other widths: `hidden` and 2 `hidden`."""

    def build() -> nn.Module:
        one, two = Axis("one"), Axis("two")
        layers: dict[str, nn.Module] = {"a": nn.Linear(FEATURES, hidden)}
        axes: dict[str, Any] = {"a.weight": (one, None), "a.bias": (one,)}
        if norm:
            layers["norm"] = nn.BatchNorm1d(hidden)
            axes |= {f"norm.{part}": (one,) for part in ("weight", "bias", "running_mean", "running_var")}
        layers |= {"tanh": nn.Tanh(), "b": nn.Linear(hidden, 2 * hidden), "relu": nn.ReLU()}
        layers["c"] = nn.Linear(2 * hidden, CLASSES)
        axes |= {"b.weight": (two, one), "b.bias": (two,), "c.weight": (None, two), "c.bias": (None,)}
        return Sliceable(layers, axes)

    return build


PARTIAL = ["heterofl", "fedrolex", "federated_dropout"]  # methods whose models are cut from the widest one
WIDTHS: tuple[Build, ...] = (sliceable(4), sliceable(2), sliceable(1))
KINDS: tuple[Build, ...] = (mlp, lambda: nn.Linear(FEATURES, CLASSES), normed)


def mixed(sizes: Sequence[int] = (9, 6, 12, 7, 10, 8, 11), builds: Sequence[Build] = KINDS, **how: Any) -> Federation:
    """A federation whose clients hold several architectures."""
    return federation(sizes, builds=builds, **how)


def distinct(fed: Federation) -> dict[int, Any]:
    """Models of all clients that differ from each other."""
    return {i: fed.families[i % len(fed.families)].init(10 + i) for i in range(fed.num_clients)}


def stacks(fed: Federation) -> list[Tensor]:
    """The same, those of each architecture [N_a, D_a]."""
    models = distinct(fed)
    return [models_of(fed, models, group) for group in fed.by_architecture(np.arange(fed.num_clients))]
