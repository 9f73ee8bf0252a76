"""The contract of a participation policy: which clients train in each round. N clients, K clients of a cohort.

Each choice is a frozen dataclass in a file of this folder, with conf/participation/<file>.yaml.
"""

from abc import abstractmethod
from typing import Protocol

import numpy as np


class Participation(Protocol):
    """Which clients the server asks to train in a round, and whose updates it uses.

    A policy is a pure function of its fields and of the generator that it is given, which the run derives from (seed,
    round): the cohort is the same in every executor and after a resume.
    """

    @abstractmethod
    def check(self, num_clients: int) -> None:
        """Raises ValueError, named after the field, where the policy cannot ask `num_clients` clients.

        The run calls this before it loads data, and again where partitions leave clients out.
        """

    @abstractmethod
    def cohort(self, num_clients: int) -> int:
        """How many of `num_clients` clients report from each round when enough clients are idle: K."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int) -> np.ndarray:
        """The distinct ids of the clients that the server asks, int64 [n] in the order of sampling.

        They are some of `idle`, the ascending ids of the clients that have examples and owe no update; none if it is
        empty.
        """

    def reporting(self, ids: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The clients whose update the server uses and their delays in rounds: two arrays [K], in the order of `ids`.

        `ids` [n] are the clients that the server asked, with their `delays` [n] in rounds. By default these are all.
        """
        return ids, delays
