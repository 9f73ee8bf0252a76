"""The same clients in each round."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.participation.base import Participation


@dataclass(frozen=True)
class FixedParticipation(Participation):
    """Asks the same clients in each round, in the order of `clients`, except those that are not idle."""

    clients: list[int]

    def __post_init__(self) -> None:
        if not self.clients or min(self.clients) < 0 or len(set(self.clients)) < len(self.clients):
            raise ValueError(f"clients must be a list of one or more different ids >= 0, got {self.clients}")

    def check(self, num_clients: int) -> None:
        if max(self.clients) >= num_clients:
            raise ValueError(
                f"clients must be ids below the number of clients ({num_clients}), got {max(self.clients)}"
            )

    def cohort(self, num_clients: int) -> int:
        return len(self.clients)

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int) -> np.ndarray:
        wanted = np.array(self.clients, dtype=np.int64)
        return wanted[np.isin(wanted, idle)]
