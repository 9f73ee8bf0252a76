"""A constant factor in each of several spans of rounds."""

import math
from dataclasses import dataclass
from itertools import pairwise

from fedlab_runner.lr_schedules.base import LRSchedule


@dataclass(frozen=True)
class PiecewiseLR(LRSchedule):
    """`factors[0]` before round `boundaries[0]`, `factors[1]` from that round to `boundaries[1]`, and so on.

    Example: FedWalk's 99 rounds at 1e-2, then 1e-5, are local.lr=1e-2, boundaries [99], factors [1, 1e-3].
    """

    boundaries: list[int]
    factors: list[float]

    def __post_init__(self) -> None:
        if any(after <= before for before, after in pairwise([0, *self.boundaries])):
            raise ValueError(f"boundaries must be >= 1 and increase, got {self.boundaries}")
        if len(self.factors) != len(self.boundaries) + 1:
            raise ValueError(
                f"factors must be {len(self.boundaries) + 1}, one more than boundaries, got {self.factors}"
            )
        if not all(0 < factor < math.inf for factor in self.factors):
            raise ValueError(f"factors must be finite and > 0, got {self.factors}")

    def factor(self, round: int) -> float:
        return float(self.factors[sum(round >= boundary for boundary in self.boundaries)])
