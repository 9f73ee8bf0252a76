"""The contract of a participation policy. N clients, K clients of a cohort."""

from typing import Protocol

import numpy as np


class Participation(Protocol):
    """Which clients the server asks to train in a round.

    A policy is a function of its fields and of the generator that it is given, which the run derives from (seed,
    round): the same cohort in every executor and after a resume.
    """

    def check(self, num_clients: int) -> None:
        """Raises ValueError, named after the field, where `num_clients` clients cannot be asked so."""
        ...

    def cohort(self, num_clients: int) -> int:
        """How many of `num_clients` clients report from each round when enough clients are idle."""
        ...

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int) -> np.ndarray:
        """The clients that the server asks, int64 [n] in the order of sampling, out of the ids `idle`."""
        ...

    def reporting(self, ids: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the asked clients `ids` [n] with these delays [n] in rounds, those whose update the server uses, and their
        delays: two arrays [K].
        """
        ...
