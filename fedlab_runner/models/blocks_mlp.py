"""Feature blocks that are vectors, with MLP extractors (Zhang et al., HyFEM, TMLR 2024, appendix C.3).
https://openreview.net/forum?id=qc2lmWkvk4
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedlab_runner.models._blocks import BlockNetwork, check_widths, chosen
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import each_at_least


@dataclass(frozen=True)
class BlocksMLP(Architecture):
    """Inputs cut into blocks of `sizes` values, an MLP of `widths` for each block, and an MLP of `hidden` layers on all
    features.

    Images are cut in the order of their values in memory. The model reads `blocks` (null: all). `server_hidden` is the
    largest width of HyFEM's server (null: that of the clients).
    """

    sizes: list[int]
    blocks: list[int] | None
    widths: list[int]
    hidden: list[int]
    server_hidden: list[int] | None

    def __post_init__(self) -> None:
        super().__post_init__()
        each_at_least(1, sizes=self.sizes, widths=self.widths)
        chosen(len(self.sizes), self.blocks)
        check_widths(self.hidden, self.server_hidden)

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        if (total := channels * image_size**2) != sum(self.sizes):
            raise ValueError(f"sizes must sum to the {total} values of an example, got {sum(self.sizes)}")
        blocks, width = chosen(len(self.sizes), self.blocks), self.server_hidden or self.hidden

        def split(inputs: Tensor) -> list[Tensor]:
            parts = torch.split(inputs.flatten(1), self.sizes, 1)
            return [parts[block] for block in blocks]

        extractors = [self._extractor(self.sizes[block]) for block in blocks]
        return BlockNetwork(split, blocks, extractors, self.widths[-1], self.hidden, width, num_classes)

    def _extractor(self, size: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise([size, *self.widths]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers)
