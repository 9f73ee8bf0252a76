"""Feature blocks of images with ResNet extractors (Zhang et al., HyFEM, TMLR 2024, section 4).
https://openreview.net/forum?id=qc2lmWkvk4
"""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models._blocks import BlockNetwork, Grid, check_grid, check_widths
from fedlab_runner.models._torch import for_vmap
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import one_of

DEPTHS = (18, 34)  # layers
STEMS = ("small", "imagenet")  # values of the field `stem`


@dataclass(frozen=True)
class BlocksResNet(Architecture):
    """Images cut into `rows` x `columns` tiles of `block_channels` channels (null: all), the convolutions and the
    pooling of a ResNet of `depth` (18, 34) for each block, and an MLP of `hidden` layers on their 512 features each.

    `stem` is that for ImageNet (imagenet) or one 3x3 convolution without pooling (small). The model reads `blocks`
    (null: all). `server_hidden` is the largest width of HyFEM's server (null: that of the clients).
    """

    depth: int
    stem: str
    rows: int
    columns: int
    block_channels: int | None
    blocks: list[int] | None
    hidden: list[int]
    server_hidden: list[int] | None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(DEPTHS, depth=self.depth)
        one_of(STEMS, stem=self.stem)
        check_grid(self.rows, self.columns, self.block_channels)
        check_widths(self.hidden, self.server_hidden)

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        grid = Grid(channels, image_size, self.rows, self.columns, self.block_channels, self.blocks)
        extractors = [self._extractor(grid.channels) for _ in grid.blocks]
        width = self.server_hidden or self.hidden
        return BlockNetwork(grid, grid.blocks, extractors, 512, self.hidden, width, num_classes)

    def _extractor(self, channels: int) -> nn.Module:
        from torchvision.models import resnet18, resnet34

        model = (resnet18 if self.depth == 18 else resnet34)()
        if self.stem == "small":
            model.conv1, model.maxpool = nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.Identity()
        else:
            model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as the other convolutions
        model.fc = nn.Identity()
        return for_vmap(model)
