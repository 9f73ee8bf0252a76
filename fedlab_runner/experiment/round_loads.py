"""How many clients the rounds of a run will have, for the estimates before the first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedlab_runner.core.algorithm import Algorithm, DecentralizedAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, RoundLoad

ROUNDS_AHEAD = 50  # rounds in which the estimate looks for the largest cohort


def load_of(
    algorithm: Algorithm[Any], fed: Federation, rounds: int, each: Sequence[RoundLoad] | None = None
) -> CohortLoad:
    """The largest numbers of clients in a round of a run of `rounds` rounds; `each`: the next rounds, if known."""
    if isinstance(algorithm, DecentralizedAlgorithm):
        trained = rounds * algorithm.changing(fed)
        return CohortLoad(fed.cohort_size, 0, 0, min(fed.num_clients, trained), trained)
    each = each or rounds_ahead(algorithm, fed, rounds)
    starting, arriving = (max(column, default=0) for column in ([r.starting for r in each], [r.arriving for r in each]))
    late = max((r.late + r.starting - r.arriving for r in each), default=0)
    ever = sum(r.first for r in each) + max(0, rounds - len(each)) * starting
    return CohortLoad(starting, late, arriving, min(fed.num_clients, ever), rounds * starting)


def rounds_ahead(algorithm: Algorithm[Any], fed: Federation, rounds: int) -> list[RoundLoad]:
    """The numbers of clients in each of the next rounds."""
    if isinstance(algorithm, DecentralizedAlgorithm):  # no client is late
        return [RoundLoad(fed.cohort_size, 0, fed.cohort_size, fed.cohort_size, fed.cohort_size)]
    due, known, found = np.empty(0, np.int64), set[int](), []
    for round, starts in enumerate(fed.ahead(min(ROUNDS_AHEAD, rounds)), fed.round):
        late, due = len(due), np.concatenate([due, starts.due])
        before = len(known)
        known.update(starts.ids.tolist())
        arriving, on_time = (int((each == round).sum()) for each in (due, starts.due))
        found.append(RoundLoad(len(starts.ids), late, arriving, on_time, len(known) - before))
        due = due[due > round]
    return found
