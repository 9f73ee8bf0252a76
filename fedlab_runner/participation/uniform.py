"""A uniform sample of the idle clients in each round."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.participation.base import Participation
from fedlab_runner.utils.validate import at_least, within


@dataclass(frozen=True)
class UniformParticipation(Participation):
    """Samples `cohort_size` idle clients, or as many as a `fraction` of all clients, without replacement. If fewer
    clients are idle, all of them train.
    """

    cohort_size: int | None
    fraction: float | None

    def __post_init__(self) -> None:
        if (self.cohort_size is None) == (self.fraction is None):
            raise ValueError(
                "cohort_size and fraction: set exactly one of them and the other to null, got "
                f"{self.cohort_size} and {self.fraction}"
            )
        at_least(1, cohort_size=self.cohort_size)
        within("(0, 1]", fraction=self.fraction)

    def check(self, num_clients: int) -> None:
        if self.cohort_size is not None and self.cohort_size > num_clients:
            raise ValueError(f"cohort_size must be <= the number of clients ({num_clients}), got {self.cohort_size}")

    def cohort(self, num_clients: int) -> int:
        size = self.cohort_size if self.fraction is None else max(1, round(self.fraction * num_clients))
        assert size is not None
        return size

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int) -> np.ndarray:
        return rng.choice(idle, min(self.cohort(num_clients), len(idle)), replace=False)
