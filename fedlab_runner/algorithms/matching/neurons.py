"""Groups of neurons that can change places, as slices of a model's vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class NeuronSlice(NamedTuple):
    """A slice of a model's vector, [outer, n, inner]; its middle axis is the n neurons of a group."""

    name: str  # of the parameter or buffer
    start: int  # index of its first value
    outer: int
    n: int
    inner: int

    def view(self, w: Tensor) -> Tensor:
        """The slice of models w [..., D] as a view [..., outer, n, inner]."""
        end = self.start + self.outer * self.n * self.inner
        return w[..., self.start : end].view(*w.shape[:-1], self.outer, self.n, self.inner)


@dataclass(frozen=True)
class NeuronGroup:
    """Neurons (channels) that can change places: the rows that compute them and the columns that read them.

    Rows are a layer's weights, its bias and the parameters of a norm behind it. Columns are the next layers' weights;
    after a flattening, each pixel of a channel has a column. Statistics are the norm's buffers.
    """

    name: str  # of the layer
    size: int  # n
    rows: tuple[NeuronSlice, ...]
    columns: tuple[NeuronSlice, ...]
    statistics: tuple[NeuronSlice, ...]

    def incoming(self, w: Tensor) -> Tensor:
        """The trainable rows [..., n, r] that compute each neuron of models w [..., D]."""
        return _features(self.rows, w)

    def outgoing(self, w: Tensor) -> Tensor:
        """The columns [..., n, c] that read each neuron of models w [..., D]."""
        return _features(self.columns, w)

    @property
    def pieces(self) -> tuple[NeuronSlice, ...]:
        """All slices that move when the neurons change places."""
        return self.rows + self.columns + self.statistics

    def own(self, w: Tensor) -> Tensor:
        """The mask [D] of a model's values that compute the neurons, including statistics."""
        mask = torch.zeros(w.shape[-1], dtype=torch.bool, device=w.device)
        for piece in self.rows + self.statistics:
            piece.view(mask).fill_(True)
        return mask


def permute(w: Tensor, group: NeuronGroup, order: np.ndarray | Tensor) -> Tensor:
    """Models w [..., D] with a group's neurons in another order: new neuron i is old neuron order[i].

    The models compute the same function as before.
    """
    index = torch.as_tensor(order, device=w.device)
    permuted = w.clone()
    for piece in group.pieces:
        piece.view(permuted).copy_(piece.view(w).index_select(-2, index))
    return permuted


def _features(pieces: Sequence[NeuronSlice], w: Tensor) -> Tensor:
    return torch.cat([piece.view(w).transpose(-3, -2).flatten(-2) for piece in pieces], -1)
