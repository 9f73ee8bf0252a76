"""Feature blocks and classes drawn for each client (Zhang et al., HyFEM, TMLR 2024, ModelNet40:2).
https://openreview.net/forum?id=qc2lmWkvk4
"""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.partitions import _common
from fedlab_runner.partitions.blocks import BlockPartition, Holdings


@dataclass(frozen=True)
class RandomBlocks(BlockPartition):
    """Each client has `blocks_per_client` of `num_blocks` feature blocks, of all examples of `classes_per_client`
    classes, drawn without replacement.

    `draw_seed` fixes the draw whatever the experiment's seed is; null draws from that.
    """

    num_blocks: int
    blocks_per_client: int
    classes_per_client: int
    draw_seed: int | None

    def __post_init__(self) -> None:
        for name in ("num_blocks", "blocks_per_client", "classes_per_client"):
            _common.check_at_least(name, getattr(self, name), 1)
        if self.blocks_per_client > self.num_blocks:
            raise ValueError(
                f"blocks_per_client must be at most num_blocks {self.num_blocks}, got {self.blocks_per_client}"
            )
        if self.draw_seed is not None:
            _common.check_at_least("draw_seed", self.draw_seed, 0)

    def draw(self, num_clients: int, num_classes: int, rng: np.random.Generator) -> Holdings:
        _common.check_at_least("num_clients", num_clients, 1)
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
