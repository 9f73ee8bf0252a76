"""The same clients in each round."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlab_runner.participation.base import HeldOut, Participation, check_held_out, check_left, drawn, number_of


@dataclass(frozen=True)
class FixedParticipation(Participation):
    """Asks the same clients in each round, in the order of `clients`, except busy clients.

    `held_out_clients` (a number, or with a decimal point a share of all clients) of the other clients are drawn from
    the seed. Without a server these never take part, and the algorithm may choose any other client as a partner.
    """

    names_clients: ClassVar[bool] = True
    clients: list[int]
    held_out_clients: HeldOut

    def __post_init__(self) -> None:
        if not self.clients or min(self.clients) < 0 or len(set(self.clients)) < len(self.clients):
            raise ValueError(f"clients must be a list of one or more different ids >= 0, got {self.clients}")
        check_held_out(self.held_out_clients)

    def check(self, num_clients: int) -> None:
        if max(self.clients) >= num_clients:
            raise ValueError(
                f"clients must be ids below the number of clients ({num_clients}), got {max(self.clients)}"
            )
        check_left(self.held_out_clients, num_clients, len(self.clients), "clients")

    def held_out(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        others = np.setdiff1d(np.arange(num_clients), self.clients)
        return drawn(rng, others, number_of(self.held_out_clients, num_clients))

    def cohort(self, num_clients: int) -> int:
        return len(self.clients)

    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int, round: int) -> np.ndarray:
        wanted = np.array(self.clients, dtype=np.int64)
        return wanted[np.isin(wanted, idle)]
