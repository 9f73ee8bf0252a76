"""The choice of `executor=auto` on a GPU, by measurements that are made once for each type of machine and kept."""

import logging
from collections.abc import Sequence

from fedlab_runner.core.work import Work
from fedlab_runner.executors._autotune.measure import Cost, agrees, expected_seconds, is_busy, measure, sample
from fedlab_runner.executors._autotune.memory import remember, remembered, shape_of
from fedlab_runner.executors._autotune.ways import REFERENCE, WAYS, Way
from fedlab_runner.utils.durations import duration

_log = logging.getLogger(__name__)
COMPILING_SECONDS = 60.0  # expected time of the compiler before a measurement


def fastest(work: Work, ways: Sequence[Way], rounds: int) -> Way | None:
    """The way with the least time for `rounds` rounds.

    None if the reference fails, or if other processes use the machine and no costs are kept. It tries compiled ways if
    several minutes of training are left. Kept costs may be of other functions, or of another model of the same shapes:
    the way is compared with the reference on this work, too.
    """
    steps = int(work.num_steps.sum())
    eager, compiled = ([way.words for way in ways if way.compile == compile] for compile in (False, True))
    known = _costs(work, "eager", eager)
    if known is None:
        _log.info("other processes use this machine: executor=auto measures nothing and follows its rule")
        return None
    costs = dict(known)

    def total(name: str) -> float:
        cost = costs[name]
        return float("inf") if cost.a_step is None else cost.once + cost.a_step * steps * rounds

    if compiled and min(map(total, costs), default=0.0) > 5 * COMPILING_SECONDS:
        _log.info("executor=auto tries compiled steps, which can take a minute or more")
        beside = dict.fromkeys([REFERENCE.words, min(costs, key=total)])  # under the same conditions
        if (more := _costs(work, "compiled", [*beside, *compiled])) is None:
            _log.info("other processes use this machine: executor=auto measures no compiled steps")
        costs |= more or {}
    ranked = sorted((name for name in costs if name in WAYS and costs[name].a_step is not None), key=total)
    chosen = next((name for name in ranked if _is_right(work, WAYS[name])), None)
    if chosen is None:
        return None
    a_round = {name: f"{(costs[name].a_step or 0) * steps:.3g} s" for name in ranked}
    _log.info(
        "local training takes %s a round with executor=%s, chosen from %s; %s for the next %d rounds",
        a_round[chosen],
        chosen,
        ", ".join(f"{name} ({seconds})" for name, seconds in a_round.items() if name != chosen),
        duration(total(chosen)),
        rounds,
    )
    return WAYS[chosen]


def _is_right(work: Work, way: Way) -> bool:
    """Whether the way is the reference or agrees with it on a sample of the work."""
    executors = way.executor(None), REFERENCE.executor(None)
    return way == REFERENCE or agrees(sample(work, expected_seconds(work)), way.words, *executors)


def _costs(work: Work, stage: str, names: Sequence[str]) -> dict[str, Cost] | None:
    """The kept costs of a stage of measurements, or new ones; None if other processes use the machine meanwhile."""
    shape = shape_of(work)
    if found := remembered(shape, stage):
        return found
    if is_busy(work.family.device):
        return None
    found = measure(sample(work, expected_seconds(work)), {name: WAYS[name].executor(None) for name in names})
    if is_busy(work.family.device):
        return None
    return remember(shape, stage, found) if len(found) == len(names) else found
