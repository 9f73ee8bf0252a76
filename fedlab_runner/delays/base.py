"""The contract of a delay: the rounds by which a client's update is late.

Each choice is a frozen dataclass in a file of this folder, with conf/delay/<file>.yaml.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlab_runner.utils.contract import require
from fedlab_runner.utils.validate import one_of

MAX_ROUNDS = 2**40  # of a delay: beyond the end of any run, and small enough for additions


@dataclass(frozen=True)
class Delay(ABC):
    """The rounds from the dispatch to the arrival of a client's update; 0 is the round of the dispatch itself.

    With `draw` client each client draws a delay once and keeps it; with dispatch it draws a new one at every dispatch.
    `draw` must be client where a client's delay never changes (`varies` false).
    """

    names_clients: ClassVar[bool] = False
    """The fields, or a file that they name, have clients by number. Then the run refuses to number clients anew."""

    varies: ClassVar[bool] = True
    draw: str

    def __post_init__(self) -> None:
        one_of(("client", "dispatch"), draw=self.draw)
        if not self.varies and self.draw != "client":
            raise ValueError(
                f"draw does nothing where a client's delay never changes: it must be client, got {self.draw}"
            )

    @abstractmethod
    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        """The delays of the clients with these ids [n]: whole rounds >= 0, int64 [n].

        With draw=client the run calls this once, for all clients, with a generator derived from its seed. With
        draw=dispatch the run calls it in each round, for the clients that start, with a generator derived from seed and
        round. The i-th draw belongs to the i-th id, so that more clients do not change another client's delay. Raises
        UserError for a file that is missing or wrong.
        """


def drawn_delays(delay: Delay, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
    """The delays that a rule draws for clients [n]. Raises UserError where they break the contract of `Delay.sample`:
    no update would arrive after half a round, or before it starts.
    """
    drawn = delay.sample(rng, clients.copy())
    whole = isinstance(drawn, np.ndarray) and drawn.dtype == np.int64 and drawn.shape == clients.shape
    in_time = whole and bool(((drawn >= 0) & (drawn <= MAX_ROUNDS)).all())
    require(in_time, delay, "sample", f"whole rounds from 0 to 2^40, int64 [{len(clients)}]", drawn)
    return drawn


def whole_rounds(delays: np.ndarray) -> np.ndarray:
    """Delays >= 0 [n] in rounds, rounded down and bounded by MAX_ROUNDS: int64 [n]."""
    whole: np.ndarray = np.minimum(delays, MAX_ROUNDS).astype(np.int64)
    return whole
