"""The server asks more clients than it needs and goes on when enough have reported."""

import math
from dataclasses import dataclass

import numpy as np

from fedlab_runner.participation.base import Participation
from fedlab_runner.utils.validate import at_least, finite_at_least


@dataclass(frozen=True)
class OverSelection(Participation):
    """Asks ceil(factor * cohort_size) idle clients and uses the updates of the first `cohort_size` to report.

    The server waits for these, so no update is stale. The other clients are idle again at once (Bonawitz et al., MLSys
    2019; Feddle, Eq 2).
    """

    cohort_size: int
    factor: float

    def __post_init__(self) -> None:
        at_least(1, cohort_size=self.cohort_size)
        finite_at_least(1, factor=self.factor)

    def check(self, num_clients: int) -> None:
        asked = math.ceil(self.factor * self.cohort_size)
        if asked > num_clients:
            raise ValueError(f"cohort_size times factor must be <= the number of clients ({num_clients}), got {asked}")

    def cohort(self, num_clients: int) -> int:
        return self.cohort_size

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int) -> np.ndarray:
        return rng.choice(idle, min(math.ceil(self.factor * self.cohort_size), len(idle)), replace=False)

    def reporting(self, ids: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The fastest clients, ties in the order of sampling. Their updates arrive in the round of the dispatch."""
        first = np.sort(np.argsort(delays, kind="stable")[: self.cohort_size])
        return ids[first], np.zeros(len(first), dtype=np.int64)
