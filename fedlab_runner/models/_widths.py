"""Networks that can be cut to other widths: which values of a tensor belong to which channel."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from torch import nn


class Axis(NamedTuple):
    """A dimension of a tensor that counts channels. All dimensions with one label are cut alike, in all tensors.

    `block` consecutive values belong to one channel where a feature map is flattened.
    """

    label: str
    block: int = 1


Axes = tuple[Axis | None, ...]  # one a dimension of a tensor; None: never cut


class Sliceable(nn.Sequential):
    """A sequence of layers with the axes of its parameters and float buffers, by name."""

    def __init__(self, layers: Mapping[str, nn.Module], axes: Mapping[str, Axes]) -> None:
        super().__init__(OrderedDict(layers))
        self.axes = dict(axes)
