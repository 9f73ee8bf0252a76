"""Models of feature blocks: an extractor for each block, and one classifier on the features (HyFEM, section 2)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.utils.validate import at_least, each_at_least

Split = Callable[[Tensor], Sequence[Tensor]]  # inputs [b, ...] -> one tensor [b, ...] for each block
Extract = Callable[[Sequence[nn.Module], Sequence[Tensor]], Sequence[Tensor]]  # features [b, f] of each block


def extract_each(extractors: Sequence[nn.Module], parts: Sequence[Tensor]) -> list[Tensor]:
    """The features of each part, extractor after extractor."""
    return [extract(part) for extract, part in zip(extractors, parts, strict=True)]


def extract_grouped(extractors: Sequence[nn.Module], parts: Sequence[Tensor]) -> list[Tensor]:
    """The features of each part, from extractors of one shape, in one pass of grouped convolutions.

    The extractors are sequences of convolutions with bias and of layers without parameters that treat each channel by
    itself. The pass saves time on a CPU, where calling a small layer takes longer than computing it.
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
    """Extractors from blocks to `num_features` values each, and an MLP with ReLU on all these features.

    An extractor with all parameters zero gives zero. So a model with zeros for some blocks is the model of a client
    without these blocks. The classifier's hidden layers use `hidden` neurons and have room for `width` neurons, to
    which a server may grow. Unused neurons are zero.
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
        extract: Extract = extract_each,
    ) -> None:
        super().__init__()
        self._extract = extract
        self._split, self.num_features, self.hidden = split, num_features, tuple(hidden)
        self.numbers = tuple(blocks)  # of the blocks within an example
        self.extractors = nn.ModuleList(extractors)
        inputs = num_features * len(extractors)
        layers: list[nn.Module] = []
        used, room = [inputs, *hidden, num_classes], [inputs, *width, num_classes]
        for (i, o), (room_in, room_out) in zip(pairwise(used), pairwise(room), strict=True):
            layers += [_linear_with_room(i, o, room_in, room_out), nn.ReLU()]
        self.classifier = nn.Sequential(*layers[:-1])
        self.active_part = tuple(range(len(extractors)))  # the blocks that the network reads at present

    @property
    def num_blocks(self) -> int:
        return len(self.extractors)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [b, C]. The features of blocks that the network does not read at present are zero."""
        parts, read = self._split(inputs), self.active_part
        features = [inputs.new_zeros(len(inputs), self.num_features)] * self.num_blocks
        extracted = self._extract([self.extractors[block] for block in read], [parts[block] for block in read])
        for block, feature in zip(read, extracted, strict=True):
            features[block] = feature
        logits: Tensor = self.classifier(torch.cat(features, 1))
        return logits

    @contextmanager
    def only(self, blocks: Sequence[int]) -> Iterator[None]:
        """A context that skips the extractors of all other blocks, for models without these blocks."""
        before, self.active_part = self.active_part, tuple(blocks)
        try:
            yield
        finally:
            self.active_part = before


def _linear_with_room(inputs: int, outputs: int, room_in: int, room_out: int) -> nn.Linear:
    """A new linear layer in the corner of a larger one that is zero elsewhere."""
    small, large = nn.Linear(inputs, outputs), nn.Linear(room_in, room_out)
    with torch.no_grad():
        large.weight.zero_()[:outputs, :inputs] = small.weight
        large.bias.zero_()[:outputs] = small.bias
    return large


def check_widths(hidden: Sequence[int], server_hidden: Sequence[int] | None) -> None:
    """Raises ValueError, named after the field, for widths < 1 and for a server narrower than its clients."""
    each_at_least(1, hidden=hidden or None)  # without hidden layers the classifier is linear
    if server_hidden is not None and (
        len(server_hidden) != len(hidden) or any(s < c for s, c in zip(server_hidden, hidden, strict=True))
    ):
        raise ValueError(
            f"server_hidden must be null or widths of at least hidden {list(hidden)}, got {list(server_hidden)}"
        )


def check_grid(rows: int, columns: int, block_channels: int | None) -> None:
    """Raises ValueError, named after the field, for a number of tiles or channels < 1."""
    at_least(1, rows=rows, columns=columns, block_channels=block_channels)


def chosen(num_blocks: int, blocks: Sequence[int] | None) -> list[int]:
    """The blocks that a model reads. Raises ValueError, named after the field, for blocks that do not exist."""
    if blocks is None:
        return list(range(num_blocks))
    if not blocks or len(set(blocks)) != len(blocks) or not set(blocks) <= set(range(num_blocks)):
        raise ValueError(f"blocks must be null or different numbers from 0 to {num_blocks - 1}, got {list(blocks)}")
    return list(blocks)


class Grid:
    """Cuts images [b, channels, size, size] into rows x columns tiles of groups of channels.

    A block has the number (row * columns + column) * groups + group. For 2 x 2 tiles of single channels the order is
    top left, top right, bottom left, bottom right, each red, green, blue. Views of an object are groups of channels of
    one tile.
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
        """Raises ValueError, named after the field, if the blocks do not tile the image."""
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
