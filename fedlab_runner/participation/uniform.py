"""A uniform sample of the idle clients in each round."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.participation.base import (
    HeldOut,
    Participation,
    check_held_out,
    check_left,
    drawn,
    number_of,
)
from fedlab_runner.utils.validate import at_least, within


@dataclass(frozen=True)
class UniformParticipation(Participation):
    """Samples idle clients without replacement: `cohort_size` of them, or a number that is a `fraction` of the clients
    that are not held out. If fewer clients are idle, all of them train.

    `held_out_clients` (a number, or with a decimal point a share of all clients) are drawn from the seed; the server
    never asks them.
    """

    cohort_size: int | None
    fraction: float | None
    held_out_clients: HeldOut

    def __post_init__(self) -> None:
        if (self.cohort_size is None) == (self.fraction is None):
            raise ValueError(
                "cohort_size and fraction: set exactly one of them and the other to null, got "
                f"{self.cohort_size} and {self.fraction}"
            )
        at_least(1, cohort_size=self.cohort_size)
        within("(0, 1]", fraction=self.fraction)
        check_held_out(self.held_out_clients)

    def check(self, num_clients: int) -> None:
        check_left(self.held_out_clients, num_clients, self.cohort_size or 1)

    def held_out(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        return drawn(rng, np.arange(num_clients), number_of(self.held_out_clients, num_clients))

    def cohort(self, num_clients: int) -> int:
        left = num_clients - number_of(self.held_out_clients, num_clients)
        size = self.cohort_size if self.fraction is None else max(1, round(self.fraction * left))
        assert size is not None
        return size

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int, round: int) -> np.ndarray:
        return rng.choice(idle, min(self.cohort(num_clients), len(idle)), replace=False)
