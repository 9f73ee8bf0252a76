"""Finds, before the first round and from the clock alone, runs whose server model will never change."""

from typing import Any

import numpy as np

from fedlab_runner.core.algorithm import Algorithm, ServerAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.utils.counting import count_of

MAX_ROUNDS_AHEAD = 1000  # of a run, above which it is not checked


def foreseen(algorithm: Algorithm[Any], fed: Federation, rounds: int) -> str | None:
    """Why a run will not change the server's model, in words; None if the clock gives no reason."""
    if not isinstance(algorithm, ServerAlgorithm) or algorithm.moves_alone or not 0 < rounds <= MAX_ROUNDS_AHEAD:
        return None
    stalenesses: list[list[int]] = [[] for _ in range(rounds)]
    seen: list[np.ndarray] = []
    reason = None
    for round, starts in enumerate(fed.ahead(rounds)):
        for due in starts.due[starts.due < rounds].tolist():
            stalenesses[due].append(due - round)
        seen.append(np.array(stalenesses[round], np.int64))
        if any(map(len, seen)) and (reason := algorithm.stands_still(seen)) is None:
            return None
    return reason or f"no update arrives within {count_of(rounds, 'round')}: lower the delay, or ask for more rounds"
