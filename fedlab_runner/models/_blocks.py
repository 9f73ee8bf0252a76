"""Models of feature blocks: an extractor for each block, and one classifier on what they extract (HyFEM, section 2)."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Split = Callable[[Tensor], Sequence[Tensor]]  # inputs [b, ...] -> one tensor [b, ...] for each block
Extract = Callable[[Sequence[nn.Module], Sequence[Tensor]], Sequence[Tensor]]  # features [b, f] of each block


def apart(extractors: Sequence[nn.Module], parts: Sequence[Tensor]) -> list[Tensor]:
    """What each extractor makes of its part."""
    return [extract(part) for extract, part in zip(extractors, parts, strict=True)]


def side_by_side(extractors: Sequence[nn.Module], parts: Sequence[Tensor]) -> list[Tensor]:
    """The same of alike extractors in one pass: sequences of convolutions with bias, which become grouped ones, and
    of layers without parameters that treat each channel alone.

    On a CPU, where small layers cost more to call than to compute, this takes less time, most with small minibatches.
    """
    x = torch.cat(list(parts), 1)
    for layers in zip(*extractors, strict=True):
        first = layers[0]
        if isinstance(first, nn.Conv2d):
            weight, bias = torch.cat([m.weight for m in layers]), torch.cat([m.bias for m in layers])
            x = F.conv2d(x, weight, bias, first.stride, first.padding, groups=len(layers))
        else:
            x = first(x)
    return list(x.chunk(len(extractors), 1))


class BlockNetwork(nn.Module):
    """Extractors from blocks to `num_features` values each, side by side the inputs of an MLP with ReLU.

    Without its parameters (all zero) an extractor gives zero: so a model whose values for some blocks are zero is the
    model of a client that lacks those blocks. The classifier's hidden layers have `hidden` neurons, the clients', and
    room for `width`, to which a server's may grow: the others start at zero, which is to say unused.
    """

    def __init__(
        self,
        split: Split,
        blocks: Sequence[int],
        extractors: Sequence[nn.Module],
        num_features: int,
        hidden: Sequence[int],
        width: Sequence[int],
        num_classes: int,
        extract: Extract = apart,
    ) -> None:
        super().__init__()
        self._extract = extract
        self._split, self.num_features, self.hidden = split, num_features, tuple(hidden)
        self.numbers = tuple(blocks)  # that the blocks have in the example
        self.extractors = nn.ModuleList(extractors)
        inputs = num_features * len(extractors)
        layers: list[nn.Module] = []
        used, room = [inputs, *hidden, num_classes], [inputs, *width, num_classes]
        for (i, o), (room_in, room_out) in zip(pairwise(used), pairwise(room), strict=True):
            layers += [_linear_with_room(i, o, room_in, room_out), nn.ReLU()]
        self.classifier = nn.Sequential(*layers[:-1])
        self.read = tuple(range(len(extractors)))  # the blocks that are read now

    @property
    def cost_kind(self) -> Hashable:
        """What the cost of a step depends on beside the architecture: the blocks that are read now."""
        return self.read

    @property
    def num_blocks(self) -> int:
        return len(self.extractors)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [b, C]; of the blocks not read now the features are zero."""
        parts, read = self._split(inputs), self.read
        features = [inputs.new_zeros(len(inputs), self.num_features)] * self.num_blocks
        extracted = self._extract([self.extractors[block] for block in read], [parts[block] for block in read])
        for block, feature in zip(read, extracted, strict=True):
            features[block] = feature
        logits: Tensor = self.classifier(torch.cat(features, 1))
        return logits

    @contextmanager
    def only(self, blocks: Sequence[int]) -> Iterator[None]:
        """Spares the extractors of all other blocks, for models that do not have them."""
        before, self.read = self.read, tuple(blocks)
        try:
            yield
        finally:
            self.read = before


def _linear_with_room(inputs: int, outputs: int, room_in: int, room_out: int) -> nn.Linear:
    """A new linear layer in the corner of a larger one that is zero elsewhere."""
    small, large = nn.Linear(inputs, outputs), nn.Linear(room_in, room_out)
    with torch.no_grad():
        large.weight.zero_()[:outputs, :inputs] = small.weight
        large.bias.zero_()[:outputs] = small.bias
    return large


def check_widths(hidden: Sequence[int], server_hidden: Sequence[int] | None) -> None:
    """Raises ValueError, named after the field, for hidden layers that cannot be."""
    if not hidden or min(hidden) < 1:
        raise ValueError(f"hidden must be a list of one or more widths >= 1, got {list(hidden)}")
    if server_hidden is not None and (
        len(server_hidden) != len(hidden) or any(s < c for s, c in zip(server_hidden, hidden, strict=True))
    ):
        raise ValueError(
            f"server_hidden must be null or widths of at least hidden {list(hidden)}, got {list(server_hidden)}"
        )


def check_grid(rows: int, columns: int, block_channels: int | None) -> None:
    """Raises ValueError, named after the field, for a tiling that cannot be."""
    for name, value in (("rows", rows), ("columns", columns), ("block_channels", block_channels)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")


def chosen(num_blocks: int, blocks: Sequence[int] | None) -> list[int]:
    """The blocks that a model reads; ValueError, named after the field, for those that there are not."""
    if blocks is None:
        return list(range(num_blocks))
    if not blocks or len(set(blocks)) != len(blocks) or not set(blocks) <= set(range(num_blocks)):
        raise ValueError(f"blocks must be null or different numbers from 0 to {num_blocks - 1}, got {list(blocks)}")
    return list(blocks)


class Grid:
    """Cuts images [b, channels, size, size] into rows x columns tiles of groups of channels.

    Block (row * columns + column) * groups + group: for 2 x 2 tiles of single channels the quadrants top left, top
    right, bottom left, bottom right, each red, green, blue. Views of an object are groups of channels of one tile.
    """

    def __init__(
        self,
        channels: int,
        image_size: int,
        rows: int,
        columns: int,
        block_channels: int | None,
        blocks: Sequence[int] | None,
    ) -> None:
        """ValueError, named after the field, where the blocks do not tile the image."""
        self.channels = channels if block_channels is None else block_channels
        for name, parts in (("rows", rows), ("columns", columns)):
            if image_size % parts:
                raise ValueError(f"{name} must divide the image's {image_size} pixels into blocks, got {parts}")
        if channels % self.channels:
            raise ValueError(f"block_channels must divide the image's {channels} channels, got {self.channels}")
        self._grid = (rows, columns, channels // self.channels)
        self._size = (image_size // rows, image_size // columns)
        self.side = min(self._size)
        self.blocks = chosen(rows * columns * (channels // self.channels), blocks)

    def __call__(self, images: Tensor) -> list[Tensor]:
        (_, columns, groups), (height, width) = self._grid, self._size
        parts = []
        for block in self.blocks:
            tile, group = divmod(block, groups)
            row, column = divmod(tile, columns)
            across = slice(column * width, (column + 1) * width)
            down, deep = (slice(i * n, (i + 1) * n) for i, n in ((row, height), (group, self.channels)))
            parts.append(images[:, deep, down, across])
        return parts
