"""Families whose vectors hold more than one model: a client trains them side by side, on the same minibatches.

Any executor trains them. A loss sees them as one model; a bound on a norm holds for each of them.
"""

from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from fedlab_runner.core.classifier import Classifier
from fedlab_runner.core.model_family import ModelFamily


class Joined(Protocol):
    """Models [k, D] and other values [k, E], joined to models [k, D + E] of one family. In evaluation mode the family's
    network is that of the first models.
    """

    @property
    def family(self) -> ModelFamily: ...

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Models [k, D] and [k, E] of any type as joined models [k, D + E]; each model keeps the order of its
        values.
        """
        ...

    def part(self, joined: Tensor) -> tuple[Tensor, Tensor]:
        """The models [k, D] and [k, E] of joined models [k, D + E]."""
        ...


class _Both(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, inputs: Tensor) -> Tensor:
        first: Tensor = self.first(inputs)
        return torch.stack([first, self.second(inputs)]) if self.training else first


def _both(first: ModelFamily, second: ModelFamily) -> nn.Module:
    return _Both(first.build(), second.build())


def _inside(prefix: str, layer: Classifier | None) -> Classifier | None:
    """The classifier of a network that is the submodule `prefix` of another."""
    return None if layer is None else layer._replace(name=f"{prefix}.{layer.name}")


class Pair:
    """Pairs of models of two families. In training mode their network gives both models' logits [2, b, C]."""

    def __init__(self, first: ModelFamily, second: ModelFamily) -> None:
        self._first, self._second = first, second
        self.family = first.like(partial(_both, first, second))
        self.family.models = [*first.models, *second.models]
        self.family.draws |= second.draws
        self.family.mixes |= first.mixes or second.mixes
        self.family.alone = first.alone or second.alone
        self.family.classifier = _inside("first", first.classifier)

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Models [k, D1] and [k, D2] as pairs [k, D1 + D2], with the parameters first, as in every vector."""
        p, q = self._first.num_params, self._second.num_params
        return torch.cat([first[:, :p], second[:, :q], first[:, p:], second[:, q:]], 1)

    def part(self, joined: Tensor) -> tuple[Tensor, Tensor]:
        """The two models [k, D1] and [k, D2] of pairs [k, D1 + D2]."""
        first, second = self._first, self._second
        sizes = [first.num_params, second.num_params, first.num_buffers, second.num_buffers]
        p, q, b, c = torch.split(joined, sizes, 1)
        return torch.cat([p, b], 1), torch.cat([q, c], 1)


class _Values(nn.Module):
    values: Tensor
    carried = True  # the network neither reads nor writes them

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.zeros(count))


class _Carrying(nn.Module):
    def __init__(self, network: nn.Module, count: int) -> None:
        super().__init__()
        self.network, self.carried = network, _Values(count)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits


def _carrying(family: ModelFamily, count: int) -> nn.Module:
    return _Carrying(family.build(), count)


class Carrying:
    """Models of a family that carry `count` more values from step to step, behind batch norm's statistics in
    `FunctionalModel.buffers`. No optimiser moves these values; a loss may.
    """

    def __init__(self, family: ModelFamily, count: int) -> None:
        self._sizes = [family.size, count]
        self.family = family.like(partial(_carrying, family, count))
        self.family.classifier = _inside("network", family.classifier)

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Models [k, D] and values [k, count] as models [k, D + count]."""
        return torch.cat([first, second], 1)

    def part(self, joined: Tensor) -> tuple[Tensor, Tensor]:
        """The models [k, D] and values [k, count] of models [k, D + count]."""
        first, second = torch.split(joined, self._sizes, 1)
        return first, second
