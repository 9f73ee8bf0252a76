"""A few examples like the clients' own, taken out of the test set (Feddle, appendix D; FedLAW's proxy data)."""

from dataclasses import dataclass

import torch

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data

MOST = 1000  # what Feddle reserves


@dataclass(frozen=True)
class InDomain:
    """Examples drawn uniformly from the test set, which loses them whether or not the algorithm uses them: `size` of
    them or a `fraction` of the set, or, when both are null, 1000 but at most a quarter of it.
    """

    size: int | None
    fraction: float | None

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(f"size must be >= 1 or null, got {self.size}")
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise ValueError(f"fraction must be between 0 and 1 or null, got {self.fraction}")
        if self.size is not None and self.fraction is not None:
            raise ValueError(f"fraction must be null where size is set, got {self.fraction} and size {self.size}")

    def reserve(self, data: Data, seed: int) -> tuple[ServerData, Data]:
        size, total = self._size(len(data.test.targets)), len(data.test.targets)
        field, value = ("size", self.size) if self.fraction is None else ("fraction", self.fraction)
        if size >= total:
            raise ValueError(f"{field} must leave some of the test set's {total} examples, got {value}")
        mine, rest = data.hold_out(size, seed)
        if torch.bincount(mine.targets).count_nonzero() < 2:
            raise ValueError(
                f"{field} must give examples of two classes at least, got {value}: {size} of the test set's {total}"
            )
        return ServerData(mine.inputs, mine.targets, len(data.class_names), in_domain=True), rest

    def _size(self, total: int) -> int:
        """How many of the test set's examples."""
        if self.fraction is not None:
            return round(self.fraction * total)
        return min(MOST, total // 4) if self.size is None else self.size
