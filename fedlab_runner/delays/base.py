"""The contract of a delay: how many rounds late a client's update arrives.

Each choice is a frozen dataclass in a file of this folder, with conf/delay/<file>.yaml.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlab_runner.utils.validate import one_of

MAX_ROUNDS = 2**40  # the longest delay: beyond the end of any run, and small enough to be added to a round


@dataclass(frozen=True)
class Delay(ABC):
    """How many rounds after its dispatch a client's update arrives; 0 is the round of the dispatch itself.

    `draw` says when a delay is drawn: once per `client`, which keeps its delay, or anew at every `dispatch`. It must be
    client where a client's delay never changes (`varies` false).
    """

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

        With draw=client the run calls this once, for all clients, with a generator derived from its seed; with
        draw=dispatch at each round, for the clients that start, with a generator derived from seed and round. The i-th
        draw belongs to the i-th id, so more clients change nobody's delay. Raises UserError for a file that is missing
        or wrong.
        """


def whole_rounds(delays: np.ndarray) -> np.ndarray:
    """Delays >= 0 [n], in rounds, rounded down and capped at MAX_ROUNDS, int64 [n]."""
    whole: np.ndarray = np.minimum(delays, MAX_ROUNDS).astype(np.int64)
    return whole
