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
    there: float
    here: float | None
    size: float  # the difference to bound: absolute for a share, else relative; infinite without a number

    def __str__(self) -> str:
        here = "no value" if self.here is None else f"{self.here:.6g}"
        apart = f", {self.size:.2g} apart" if math.isfinite(self.size) else ""
        return f"{self.metric} in round {self.round}: {self.there:.6g} there, {here} here{apart}"


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


def compare(there: Sequence[Row], here: Sequence[Row], every: int, tolerance: float) -> Comparison:
    """Compares the rows of a bundle with those of this machine. Row i of both belongs to round i.

    Two numbers differ by |a - b| for a share of examples, such as an accuracy, and else by |a - b| / max(|a|, |b|).
    Values that only this machine has do not count. Values that only the bundle has do not count in a round without a
    due evaluation (`every`): a run evaluates in its last round too, and may have been made longer afterwards.
    """
    assert len(there) <= len(here), "the run was computed for all rounds"
    values, largest, beyond = 0, None, []
    for old, new in zip(there, here, strict=False):
        for metric, theirs in old.items():
            ours = new.get(metric)
            if ours is None and old["round"] % every:
                continue
            values += 1
            if ours is not None and (ours == theirs or (math.isnan(ours) and math.isnan(theirs))):
                continue
            found = ValueDifference(old["round"], metric, theirs, ours, _size(metric, theirs, ours))
            if largest is None or found.size > largest.size:
                largest = found
            if found.size > tolerance:
                beyond.append(found)
    return Comparison(values, largest, beyond)


def _size(metric: str, theirs: float, ours: float | None) -> float:
    if ours is None or not (math.isfinite(ours) and math.isfinite(theirs)):
        return math.inf
    apart = abs(ours - theirs)
    return apart if is_share(metric) else apart / max(abs(ours), abs(theirs))
