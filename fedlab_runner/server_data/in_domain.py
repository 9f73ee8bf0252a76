"""A few examples like the clients' own, taken out of the test set (Feddle, appendix D)."""

from dataclasses import dataclass, replace

import torch

from fedlab_runner.data import Data
from fedlab_runner.rng import Purpose, generator
from fedlab_runner.server import ServerData


@dataclass(frozen=True)
class InDomain:
    """`size` examples drawn uniformly from the test set, which loses them whether or not the algorithm uses them."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be >= 1, got {self.size}")

    def reserve(self, data: Data, seed: int) -> tuple[ServerData, Data]:
        test = data.test
        if self.size >= len(test.targets):
            raise ValueError(f"size must be less than the test set's {len(test.targets)} examples, got {self.size}")
        order = torch.from_numpy(generator(seed, Purpose.SERVER_DATA).permutation(len(test.targets)))
        mine, rest = order[: self.size], order[self.size :].sort().values
        targets = test.targets[mine]
        if torch.bincount(targets).count_nonzero() < 2:
            raise ValueError(f"size must give examples of two classes at least, got {self.size} of a single one")
        return ServerData(test.inputs[mine], targets, len(data.class_names), True), replace(
            data, test=test.select(rest)
        )
