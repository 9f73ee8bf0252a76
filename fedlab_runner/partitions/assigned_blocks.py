"""Feature blocks and classes as the config assigns them to each client (Zhang et al., HyFEM, TMLR 2024, Tables 2 to 4).
https://openreview.net/forum?id=qc2lmWkvk4
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions.blocks import BlockPartition, Holdings
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class AssignedBlocks(BlockPartition):
    """Client m has the feature blocks `blocks[m]` (of `num_blocks` blocks) of all examples of the classes `classes[m]`.

    Clients may share blocks and examples. All numbers count from 0.
    """

    num_blocks: int
    blocks: list[list[int]]
    classes: list[list[int]]

    def __post_init__(self) -> None:
        at_least(1, num_blocks=self.num_blocks)
        if len(self.blocks) != len(self.classes):
            raise ValueError(
                f"classes must have a list for each of the {len(self.blocks)} clients in blocks, got "
                f"{len(self.classes)}"
            )
        for name, lists, most in (("blocks", self.blocks, self.num_blocks), ("classes", self.classes, None)):
            for client, mine in enumerate(lists):
                if not mine or len(set(mine)) != len(mine) or min(mine) < 0 or (most is not None and max(mine) >= most):
                    numbers = "numbers" if most is None else f"numbers from 0 to {most - 1}"
                    raise ValueError(f"{name} must be different {numbers} for each client, got {mine} for {client}")

    def draw(self, num_clients: int, num_classes: int, rng: np.random.Generator) -> Holdings:
        if num_clients != len(self.blocks):
            raise ValueError(f"num_clients must be {len(self.blocks)} as in partition.blocks, got {num_clients}")
        if (largest := max(map(max, self.classes))) >= num_classes:
            raise ValueError(f"classes must be at most {num_classes - 1}, the data set's last, got {largest}")
        return Holdings(
            np.array([np.isin(np.arange(self.num_blocks), mine) for mine in self.blocks]),
            np.array([np.isin(np.arange(num_classes), mine) for mine in self.classes]),
        )
