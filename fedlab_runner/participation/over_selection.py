"""The server asks more clients than it needs and continues when enough have reported."""

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
from fedlab_runner.utils.rounding import rounded_up
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class OverSelection(Participation):
    """Asks ceil(factor * cohort_size) idle clients and uses the updates of the first `cohort_size` to report.

    The server waits for these updates, so that none is stale. The other clients are idle again at once (Bonawitz et
    al., MLSys 2019; Feddle, Eq 2). `held_out_clients` (a number, or with a decimal point a share of all clients) are
    drawn from the seed; the server never asks them.
    """

    cohort_size: int
    factor: float
    held_out_clients: HeldOut

    def __post_init__(self) -> None:
        at_least(1, cohort_size=self.cohort_size)
        at_least(1, factor=self.factor)
        check_held_out(self.held_out_clients)

    def check(self, num_clients: int) -> None:
        asked = rounded_up(self.factor * self.cohort_size)
        check_left(self.held_out_clients, num_clients, asked, "cohort_size times factor")

    def held_out(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        return drawn(rng, np.arange(num_clients), number_of(self.held_out_clients, num_clients))

    def cohort(self, num_clients: int) -> int:
        return self.cohort_size

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int, round: int) -> np.ndarray:
        return rng.choice(idle, min(rounded_up(self.factor * self.cohort_size), len(idle)), replace=False)

    def reporting(self, ids: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The fastest clients; ties go by the order of sampling. Their updates arrive in the round of the dispatch."""
        first = np.sort(np.argsort(delays, kind="stable")[: self.cohort_size])
        return ids[first], np.zeros(len(first), dtype=np.int64)
