"""A uniform sample of the idle clients at each round."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class UniformParticipation:
    """Samples `cohort_size` idle clients, or a `fraction` of all clients, without replacement; all idle ones if there
    are fewer.
    """

    cohort_size: int | None
    fraction: float | None

    def __post_init__(self) -> None:
        if (self.cohort_size is None) == (self.fraction is None):
            raise ValueError(
                "cohort_size and fraction: set exactly one of them and the other to null, got "
                f"{self.cohort_size} and {self.fraction}"
            )
        if self.cohort_size is not None and self.cohort_size < 1:
            raise ValueError(f"cohort_size must be >= 1, got {self.cohort_size}")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be in (0, 1], got {self.fraction}")

    def check(self, num_clients: int) -> None:
        """Refuses a cohort that the population cannot fill."""
        if self.cohort_size is not None and self.cohort_size > num_clients:
            raise ValueError(f"cohort_size must be <= the number of clients ({num_clients}), got {self.cohort_size}")

    def cohort(self, num_clients: int) -> int:
        """How many clients train in a round when enough are idle."""
        size = self.cohort_size if self.fraction is None else max(1, round(self.fraction * num_clients))
        assert size is not None
        return size

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int) -> np.ndarray:
        """The clients asked at a round, in the order of sampling."""
        return rng.choice(idle, min(self.cohort(num_clients), len(idle)), replace=False)

    def reporting(self, ids: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The clients whose update will be used, and the rounds until it arrives."""
        return ids, delays
