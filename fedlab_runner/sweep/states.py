"""The states of a run, for the tables of sweeps and for reports."""

from collections import Counter
from collections.abc import Iterable

FINISHED = "finished"  # the files have all rounds
FAILED = "failed"  # the run ended by an error
PRUNED = "pruned"  # the rule `pruning` of its sweep ended the run
STOPPED = "stopped"  # a signal ended the run
DAMAGED = "damaged"  # the rows are not as the run left them; of reports alone
UNFINISHED = "unfinished"  # begun, and running or ended without a message
MISSING = "missing"  # the sweep's record names a run whose folder is gone; of reports alone
NOT_BEGUN = "not begun"  # the sweep has not reached the job yet, or the files have no round
ALL = (FINISHED, FAILED, PRUNED, STOPPED, DAMAGED, UNFINISHED, MISSING, NOT_BEGUN)  # in the order of tables and reports
OF_JOBS = tuple(state for state in ALL if state not in (DAMAGED, MISSING))  # in the tables of sweeps
NOT_FINITE = "not finite"  # a finished run whose objective is no finite number
NEVER_REACHED = "never reached"  # a finished run has not reached a target; a run in another state may still do so


def counted(states: Iterable[str], not_finite: int = 0) -> list[str]:
    """The number of runs in each state except `finished`, in the order of `ALL`: `2 failed`, `1 not begun`; and of the
    finished ones whose objective is not finite.
    """
    counts = Counter(states)
    found = [f"{counts[state]} {state}" for state in ALL if counts[state] and state != FINISHED]
    return [*found, *([f"{not_finite} {NOT_FINITE}"] if not_finite else [])]


def common(states: Iterable[str]) -> str:
    """The one state of all runs that are not finished; `unfinished` if these differ, `finished` if there are none."""
    found = set(states) - {FINISHED} or {FINISHED}
    return found.pop() if len(found) == 1 else UNFINISHED


def without_result(states: Iterable[str]) -> str:
    """The state of runs of which none has a finite objective: `common`, or `not finite` if all are finished."""
    found = common(states)
    return NOT_FINITE if found == FINISHED else found


def of_target(states: Iterable[str]) -> list[str]:
    """The number of runs that did not reach a target, by state: `1 never reached`, `2 failed`."""
    found = list(states)
    never = found.count(FINISHED)
    return [*([f"{never} {NEVER_REACHED}"] if never else []), *counted(found)]
