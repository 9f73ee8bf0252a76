"""More clients than needed are asked, and the server goes on when enough have reported."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OverSelection:
    """Asks ceil(factor * cohort_size) idle clients and keeps the first `cohort_size` to report; late ones are
    discarded and idle again.

    The server waits for those it keeps, so their updates are never stale (Bonawitz et al., MLSys 2019; Feddle, Eq 2).
    """

    cohort_size: int
    factor: float

    def __post_init__(self) -> None:
        if self.cohort_size < 1:
            raise ValueError(f"cohort_size must be >= 1, got {self.cohort_size}")
        if not self.factor >= 1:
            raise ValueError(f"factor must be >= 1, got {self.factor}")

    def check(self, num_clients: int) -> None:
        """Refuses a cohort that the population cannot fill."""
        asked = math.ceil(self.factor * self.cohort_size)
        if asked > num_clients:
            raise ValueError(f"cohort_size times factor must be <= the number of clients ({num_clients}), got {asked}")

    def cohort(self, num_clients: int) -> int:
        """How many clients' updates a round keeps when enough are idle."""
        return self.cohort_size

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int) -> np.ndarray:
        """The clients asked at a round, in the order of sampling."""
        return rng.choice(idle, min(math.ceil(self.factor * self.cohort_size), len(idle)), replace=False)

    def reporting(self, ids: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The fastest clients, ties in the order of sampling; they arrive in the round they were asked."""
        first = np.sort(np.argsort(delays, kind="stable")[: self.cohort_size])
        return ids[first], np.zeros(len(first), dtype=np.int64)
