"""Feature blocks of images with small convolutional extractors (lighter than HyFEM's ResNet extractors).
https://openreview.net/forum?id=qc2lmWkvk4
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fedlab_runner.models._blocks import BlockNetwork, Grid, check_grid, check_widths, extract_grouped
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import each_at_least


@dataclass(frozen=True)
class BlocksCNN(Architecture):
    """Images cut into `rows` x `columns` tiles of `block_channels` channels (null: all), a small CNN for each block,
    and an MLP of `hidden` layers on all features.

    Each extractor has 3x3 convolutions of `widths` channels, with ReLU and 2x2 max pooling, and averages over the
    remaining pixels. The model reads `blocks` (null: all). `server_hidden` is the largest width of HyFEM's server
    (null: that of the clients).
    """

    rows: int
    columns: int
    block_channels: int | None
    blocks: list[int] | None
    widths: list[int]
    hidden: list[int]
    server_hidden: list[int] | None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_grid(self.rows, self.columns, self.block_channels)
        check_widths(self.hidden, self.server_hidden)
        each_at_least(1, widths=self.widths)

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        grid = Grid(channels, image_size, self.rows, self.columns, self.block_channels, self.blocks)
        if grid.side < (least := 2 ** len(self.widths)):
            raise ValueError(f"widths must be fewer for blocks of {grid.side} pixels (each halves them, from {least})")
        extractors = [self._extractor(grid.channels) for _ in grid.blocks]
        width = self.server_hidden or self.hidden
        features = self.widths[-1]
        return BlockNetwork(
            grid, grid.blocks, extractors, features, self.hidden, width, num_classes, extract=extract_grouped
        )

    def _extractor(self, channels: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise([channels, *self.widths]):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
