"""The states of a run: one vocabulary for the tables of sweeps and for reports."""

from collections import Counter
from collections.abc import Iterable

FINISHED = "finished"  # all rounds are there
FAILED = "failed"  # the run ended by an error
PRUNED = "pruned"  # the rule `pruning` of its sweep ended the run
STOPPED = "stopped"  # a signal ended the run
DAMAGED = "damaged"  # the rows are not as the run left them
UNFINISHED = "unfinished"  # begun, at work or ended without a word
NOT_BEGUN = "not begun"  # the sweep has not come to the job yet, or no round is on file
ALL = (FINISHED, FAILED, PRUNED, STOPPED, DAMAGED, UNFINISHED, NOT_BEGUN)
NEVER_REACHED = "never reached"  # of a target, by a finished run; a run in another state may reach it yet


def counted(states: Iterable[str]) -> list[str]:
    """`2 failed`, `1 not begun`: how many are in each state but `finished`, in the order of `ALL`."""
    counts = Counter(states)
    return [f"{counts[state]} {state}" for state in ALL if counts[state] and state != FINISHED]


def common(states: Iterable[str]) -> str:
    """The state that all share, else `unfinished`; `finished` counts only where nothing else is there."""
    found = set(states) - {FINISHED} or {FINISHED}
    return found.pop() if len(found) == 1 else UNFINISHED


def of_target(states: Iterable[str]) -> list[str]:
    """How many runs did not reach a target, by state: `1 never reached`, `2 failed`."""
    found = list(states)
    never = found.count(FINISHED)
    return [*([f"{never} {NEVER_REACHED}"] if never else []), *counted(found)]
