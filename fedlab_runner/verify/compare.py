"""Compares the rows of a recomputed run with those of a bundle."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedlab_runner.core.metric_names import is_share
from fedlab_runner.tracking.jsonl import Row

EQUAL, WITHIN, DIFFERENT = "equal", "within tolerance", "DIFFERENT"


class ValueDifference(NamedTuple):
    """Two different values of a metric; None: no value."""

    round: int
    metric: str
    there: float | None
    here: float | None
    size: float  # as `apart` gives it

    def __str__(self) -> str:
        there, here = ("no value" if each is None else f"{each:.6g}" for each in (self.there, self.here))
        size = f", {self.size:.2g} apart" if math.isfinite(self.size) else ""
        return f"{self.metric} in round {self.round}: {there} there, {here} here{size}"


@dataclass(frozen=True)
class Comparison:
    """The comparison of all values of the rounds that both have. `beyond`: differences above the tolerance, by
    round.
    """

    values: int
    largest: ValueDifference | None  # the largest difference; None if all values are equal bit for bit
    beyond: Sequence[ValueDifference]

    @property
    def verdict(self) -> str:
        """One of EQUAL, WITHIN, DIFFERENT."""
        return DIFFERENT if self.beyond else EQUAL if self.largest is None else WITHIN

    def __str__(self) -> str:
        if self.largest is None:
            return f"{EQUAL}: each of {self.values} values, to the bit"
        if not self.beyond:
            return f"{WITHIN}: of {self.values} values the largest difference is {self.largest}"
        return f"{DIFFERENT}: {len(self.beyond)} of {self.values} values, the first {self.beyond[0]}"


def compare(there: Sequence[Row], here: Sequence[Row], metric: str, every: int, tolerance: float) -> Comparison:
    """Compares the rows of a bundle with those of this machine. Row i of both belongs to round i.

    Values that only one of both has count as follows. Of those that only this machine has, the run's `metric` counts
    in a round with a due evaluation (`every`): another version may have more metrics. Values that only the bundle has
    do not count in a round without a due evaluation: a run evaluates in its last round too, and may have been made
    longer afterwards.
    """
    assert len(there) <= len(here), "the run was computed for all rounds"
    values, largest, beyond = 0, None, []
    for old, new in zip(there, here, strict=False):
        due = old["round"] % every == 0
        for name in [*old, *({metric} & new.keys() - old.keys() if due else ())]:
            theirs, ours = old.get(name), new.get(name)
            if ours is None and not due:
                continue
            values += 1
            found = ValueDifference(old["round"], name, theirs, ours, apart(name, theirs, ours))
            if found.size and (largest is None or found.size > largest.size):
                largest = found
            if found.size > tolerance:
                beyond.append(found)
    return Comparison(values, largest, beyond)


def apart(metric: str, theirs: float | None, ours: float | None) -> float:
    """How far two values of a metric differ: |a - b| for a share of examples, such as an accuracy, and else
    |a - b| / max(|a|, |b|). Infinite where one alone is missing or is not finite.
    """
    if theirs == ours or (theirs is not None and ours is not None and math.isnan(theirs) and math.isnan(ours)):
        return 0.0
    if theirs is None or ours is None or not (math.isfinite(ours) and math.isfinite(theirs)):
        return math.inf
    size = abs(ours - theirs)
    return size if is_share(metric) else size / max(abs(ours), abs(theirs))
