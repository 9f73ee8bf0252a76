"""A few examples like the clients' own, taken out of the test set (Feddle, appendix D)."""

from dataclasses import dataclass

import torch

from fedlab_runner.data import Data
from fedlab_runner.server import ServerData


@dataclass(frozen=True)
class InDomain:
    """`size` examples drawn uniformly from the test set, which loses them whether or not the algorithm uses them."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be >= 1, got {self.size}")

    def reserve(self, data: Data, seed: int) -> tuple[ServerData, Data]:
        if self.size >= len(data.test.targets):
            raise ValueError(
                f"size must be less than the test set's {len(data.test.targets)} examples, got {self.size}"
            )
        mine, rest = data.hold_out(self.size, seed)
        if torch.bincount(mine.targets).count_nonzero() < 2:
            raise ValueError(f"size must give examples of two classes at least, got {self.size} of a single one")
        return ServerData(mine.inputs, mine.targets, len(data.class_names), in_domain=True), rest
