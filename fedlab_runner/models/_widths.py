"""Networks that can be cut to other widths, with the channel of each value of their tensors."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from torch import nn


class Axis(NamedTuple):
    """A dimension of a tensor that counts channels. All dimensions with one label are cut in the same way.

    After the flattening of a feature map `block` consecutive values belong to one channel.
    """

    label: str
    block: int = 1


Axes = tuple[Axis | None, ...]  # for each dimension of a tensor; None: never cut


class Sliceable(nn.Sequential):
    """A sequence of layers with the axes of its parameters and float buffers, by name."""

    def __init__(self, layers: Mapping[str, nn.Module], axes: Mapping[str, Axes]) -> None:
        super().__init__(OrderedDict(layers))
        self.axes = dict(axes)
