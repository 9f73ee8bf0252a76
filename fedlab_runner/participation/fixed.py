"""The same clients at every round."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FixedParticipation:
    """Asks the idle ones of a fixed list of clients, in its order."""

    clients: list[int]

    def __post_init__(self) -> None:
        if not self.clients or min(self.clients) < 0 or len(set(self.clients)) < len(self.clients):
            raise ValueError(f"clients must be distinct client ids >= 0, at least one, got {self.clients}")

    def check(self, num_clients: int) -> None:
        """Refuses ids that the population does not have."""
        if max(self.clients) >= num_clients:
            raise ValueError(
                f"clients must be ids below the number of clients ({num_clients}), got {max(self.clients)}"
            )

    def cohort(self, num_clients: int) -> int:
        """How many clients train in a round when all are idle."""
        return len(self.clients)

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int) -> np.ndarray:
        """The clients asked at a round."""
        wanted = np.array(self.clients, dtype=np.int64)
        return wanted[np.isin(wanted, idle)]

    def reporting(self, ids: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The clients whose update will be used, and the rounds until it arrives."""
        return ids, delays
