"""The median stopping rule (Golovin et al., KDD 2017, section 3.2.2) as Optuna has it (Akiba et al., KDD 2019).

https://doi.org/10.1145/3097983.3098043
"""

import math
import statistics
from dataclasses import dataclass

from fedlab_runner.pruning.base import Curve, Others


@dataclass(frozen=True)
class Median:
    """Ends a run whose best evaluation so far is worse than the median of what the others had at this round.

    Not before round `warmup`, and not before `min_runs` runs of the sweep have finished that were evaluated at this
    round.
    """

    warmup: int
    min_runs: int

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(f"warmup must be >= 0, got {self.warmup}")
        if self.min_runs < 1:
            raise ValueError(f"min_runs must be >= 1, got {self.min_runs}")

    def verdict(self, own: Curve, others: Others) -> str | None:
        round = max(own, default=0)
        if round < max(self.warmup, 1):
            return None
        there = [other[round] for other in others() if math.isfinite(other.get(round, math.nan))]
        if len(there) < self.min_runs:
            return None
        best = max((value for value in own.values() if math.isfinite(value)), default=-math.inf)
        middle = statistics.median(there)
        if best >= middle:
            return None
        return f"its best so far is worse than the median of {len(there)} finished runs there"
