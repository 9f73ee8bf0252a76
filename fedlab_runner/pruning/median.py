"""The median stopping rule (Golovin et al., KDD 2017, section 3.2.2) in Optuna's form (Akiba et al., KDD 2019).

https://doi.org/10.1145/3097983.3098043
"""

import math
import statistics
from dataclasses import dataclass

from fedlab_runner.pruning.base import Curve, Others, Pruning
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class Median(Pruning):
    """Stops a run whose best evaluation so far is worse than the median of the finished runs at the same round.

    The rule stops no run before round `warmup`, and none before `min_runs` finished runs have an evaluation at this
    round.
    """

    warmup: int
    min_runs: int

    def __post_init__(self) -> None:
        at_least(0, warmup=self.warmup)
        at_least(1, min_runs=self.min_runs)

    def verdict(self, own: Curve, others: Others) -> str | None:
        round = max(own, default=0)
        if round < max(self.warmup, 1):
            return None
        at_this_round = [other[round] for other in others() if math.isfinite(other.get(round, math.nan))]
        if len(at_this_round) < self.min_runs:
            return None
        best = max((value for value in own.values() if math.isfinite(value)), default=-math.inf)
        middle = statistics.median(at_this_round)
        if best >= middle:
            return None
        return f"its best so far is worse than the median of {len(at_this_round)} finished runs there"
