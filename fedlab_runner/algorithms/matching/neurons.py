"""Groups of neurons that can change places, as stretches of a model's vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class NeuronSlice(NamedTuple):
    """A stretch of a model's vector, [outer, n, inner], whose middle axis is a group's n neurons."""

    name: str  # of the parameter or buffer
    start: int
    outer: int
    n: int
    inner: int

    def view(self, w: Tensor) -> Tensor:
        """The stretch of models w [..., D] as a view [..., outer, n, inner]."""
        end = self.start + self.outer * self.n * self.inner
        return w[..., self.start : end].view(*w.shape[:-1], self.outer, self.n, self.inner)


@dataclass(frozen=True)
class NeuronGroup:
    """Neurons (channels) that can change places: the rows that make them and the columns that read them.

    Rows are a layer's weights, its bias and the parameters of a norm behind it; columns are the next layers' weights,
    blocks of height x width of them after a flattening; statistics are the norm's buffers.
    """

    name: str  # of the layer
    size: int  # n
    rows: tuple[NeuronSlice, ...]
    columns: tuple[NeuronSlice, ...]
    statistics: tuple[NeuronSlice, ...]

    def incoming(self, w: Tensor) -> Tensor:
        """What makes each neuron of models w [..., D]: its trainable rows [..., n, r]."""
        return _features(self.rows, w)

    def outgoing(self, w: Tensor) -> Tensor:
        """What is made of each neuron of models w [..., D]: its columns [..., n, c]."""
        return _features(self.columns, w)

    @property
    def pieces(self) -> tuple[NeuronSlice, ...]:
        """All that moves when the neurons change places."""
        return self.rows + self.columns + self.statistics

    def own(self, w: Tensor) -> Tensor:
        """Which of the values of a model [D] make the neurons, statistics included: a mask [D]."""
        mask = torch.zeros(w.shape[-1], dtype=torch.bool, device=w.device)
        for piece in self.rows + self.statistics:
            piece.view(mask).fill_(True)
        return mask


def permute(w: Tensor, group: NeuronGroup, order: np.ndarray | Tensor) -> Tensor:
    """The same models [..., D] with their neurons in another order: new neuron i is the old neuron order[i].

    Their function does not change.
    """
    index = torch.as_tensor(order, device=w.device)
    permuted = w.clone()
    for piece in group.pieces:
        piece.view(permuted).copy_(piece.view(w).index_select(-2, index))
    return permuted


def _features(pieces: Sequence[NeuronSlice], w: Tensor) -> Tensor:
    return torch.cat([piece.view(w).transpose(-3, -2).flatten(-2) for piece in pieces], -1)
