"""Runs whose model never changes: told before the first round where the clock alone tells it, and at the end."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedlab_runner.algorithm import Algorithm, ServerAlgorithm
from fedlab_runner.federation import Federation

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


def found(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The same of the rows of a run, in words: every evaluation is that of the first model, to the bit."""
    first = {key: value for key, value in rows[0].items() if key != "round"} if rows else {}
    later = [row for row in rows[1:] if first.keys() <= row.keys()]
    if not first or not later or any(row[key] != value for row in later for key, value in first.items()):
        return None
    arrived = sum(row.get("late/arrived", 0) for row in rows)
    why = f", and {arrived:.0f} updates have arrived" if any("late/arrived" in row for row in rows) else ""
    return f"the evaluated model never changed: each evaluation is that of the first model{why}"
