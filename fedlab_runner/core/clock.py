"""Which clients start in each round, and when their updates arrive. Nothing here depends on what clients learn."""

from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.delays.base import Delay, drawn_delays
from fedlab_runner.participation.base import (
    Participation,
    asked_clients,
    cohort_size,
    never_asked,
    reporting_clients,
)


class Starts(NamedTuple):
    """The clients that train from this round's server model, and when they report."""

    ids: np.ndarray  # [K], in the order of sampling
    due: np.ndarray  # [K], the rounds in which their updates arrive
    asked: np.ndarray  # the clients that received the model, including those whose update the server will not use


class RoundClock:
    """Time in rounds (Feddle, section 3): each round samples idle clients; a client with delay d reports d rounds
    later.

    Until then the client is busy: the server samples it again only after the round in which its update arrives. An
    update that is due after the last round never arrives.
    """

    def __init__(self, num_examples: np.ndarray, participation: Participation, delay: Delay, seed: int) -> None:
        num_clients = len(num_examples)
        participation.check(num_clients)
        self._participation, self._delay, self._seed = participation, delay, seed
        # [N], the round in which each client's last update arrives: never for a client that cannot start
        self._due = np.where(num_examples > 0, -1, np.iinfo(np.int64).max)
        self.cohort_size = cohort_size(participation, num_clients)  # how many report, if enough clients are idle
        self.held_out = never_asked(participation, generator(seed, Purpose.HELD_OUT_CLIENTS), num_clients)
        self._due[self.held_out] = np.iinfo(np.int64).max
        self._delays = (
            drawn_delays(delay, generator(seed, Purpose.DELAY), np.arange(num_clients))
            if delay.draw == "client"
            else None
        )

    def start(self, round: int) -> Starts:
        """Samples this round's clients and fixes when they report."""
        num_clients = len(self._due)
        idle = np.flatnonzero(self._due < round)
        policy = self._participation
        asked = asked_clients(policy, generator(self._seed, Purpose.COHORT, round), idle, num_clients, round)
        if self._delays is None:
            delays = drawn_delays(self._delay, generator(self._seed, Purpose.DELAY, round), asked)
        else:
            delays = self._delays[asked]
        ids, delays = reporting_clients(policy, asked, delays)
        self._due[ids] = round + delays
        return Starts(ids, round + delays, asked)

    def ahead(self, round: int, rounds: int) -> Iterator[Starts]:
        """What `start` will return in each of `rounds` rounds from `round` on. The clock itself does not move."""
        twin = copy(self)
        twin._due = self._due.copy()
        return (twin.start(each) for each in range(round, round + rounds))

    def sample(self, round: int, clients: np.ndarray) -> np.ndarray:
        """The clients of `clients` that take part in a round without late clients."""
        rng = generator(self._seed, Purpose.COHORT, round)
        ids = asked_clients(self._participation, rng, clients, len(self._due), round)
        return reporting_clients(self._participation, ids, np.zeros(len(ids), np.int64))[0]

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"due": torch.from_numpy(self._due.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state. Raises ValueError if it has another number of clients."""
        due = state["due"].cpu().numpy()
        if due.shape != self._due.shape or due.dtype != self._due.dtype:
            raise ValueError(f"due has {due.shape} {due.dtype}, not {self._due.shape} {self._due.dtype}")
        self._due = due.copy()
