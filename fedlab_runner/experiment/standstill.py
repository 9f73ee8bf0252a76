"""Runs whose model never changes: told before the first round where the clock alone tells it."""

from typing import Any

import numpy as np

from fedlab_runner.core.algorithm import Algorithm, ServerAlgorithm
from fedlab_runner.core.federation import Federation

FAR = 1000  # rounds that are looked at ahead


def foreseen(algorithm: Algorithm[Any], fed: Federation, rounds: int) -> str | None:
    """Why a run that begins will not move the server's model, in words; None where nothing tells so."""
    if not isinstance(algorithm, ServerAlgorithm) or not 0 < rounds <= FAR:
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
    return reason or f"no update arrives within the {rounds} rounds: lower the delay, or ask for more rounds"
