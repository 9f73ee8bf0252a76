"""Feature blocks and classes drawn for each client (Zhang et al., HyFEM, TMLR 2024, ModelNet40:2).
https://openreview.net/forum?id=qc2lmWkvk4
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions.blocks import BlockPartition, Holdings
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class RandomBlocks(BlockPartition):
    """Each client draws `blocks_per_client` of `num_blocks` feature blocks and `classes_per_client` classes, without
    replacement, and has its blocks of all examples of its classes.

    `draw_seed` is the seed of the draw; null: the experiment's.
    """

    num_blocks: int
    blocks_per_client: int
    classes_per_client: int
    draw_seed: int | None

    def __post_init__(self) -> None:
        at_least(
            1,
            num_blocks=self.num_blocks,
            blocks_per_client=self.blocks_per_client,
            classes_per_client=self.classes_per_client,
        )
        if self.blocks_per_client > self.num_blocks:
            raise ValueError(
                f"blocks_per_client must be at most num_blocks {self.num_blocks}, got {self.blocks_per_client}"
            )
        at_least(0, draw_seed=self.draw_seed)

    def draw(self, num_clients: int, num_classes: int, rng: np.random.Generator) -> Holdings:
        at_least(1, num_clients=num_clients)
        if self.classes_per_client > num_classes:
            raise ValueError(
                f"classes_per_client must be at most {num_classes}, the data set's classes, got "
                f"{self.classes_per_client}"
            )
        stream = rng if self.draw_seed is None else np.random.default_rng(self.draw_seed)
        blocks = np.zeros((num_clients, self.num_blocks), dtype=bool)
        classes = np.zeros((num_clients, num_classes), dtype=bool)
        for client in range(num_clients):
            blocks[client, stream.choice(self.num_blocks, self.blocks_per_client, replace=False)] = True
            classes[client, stream.choice(num_classes, self.classes_per_client, replace=False)] = True
        return Holdings(blocks, classes)
