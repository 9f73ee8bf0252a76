"""Formats numbers and remarks for people."""

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from functools import partial

from fedlab_runner.core.metric_names import LARGE, is_share, unit_of
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import mean, std
from fedlab_runner.sweep import states
from fedlab_runner.tracking.ending import NO_EVALUATION
from fedlab_runner.utils.short_number import short_number

NONE, MINUS, PLUS_MINUS = "\N{EN DASH}", "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}"
MAX_DECIMALS = 4  # of a shown number
NOISE = 1e-12  # below which a difference of two means may be one of rounding alone
MAX_TIED = 3  # equally good methods that a sentence names
MAX_NAMED = 12  # runs or jobs that a list names
PREFIXES = {  # units of costs: each is a thousand times the one before
    "MB": ("kB", "MB", "GB", "TB", "PB"),
    "GFLOPs": ("kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs", "EFLOPs"),
}
FEW, MANY = 0.1, 1e4  # between these the largest value of a column is easy to read
MAX_RATIO = 100  # of the largest to the smallest deviation of a column, up to which its cells share their decimals
TWO_DIGITS_TO = 35.5  # leading digits of a deviation up to which it has two digits (the rule of particle physics)


def unit(metric: str) -> str:
    """The unit of shown values of a metric; empty if it has none."""
    return "%" if is_share(metric) else unit_of(metric)


def scale(metric: str) -> float:
    """The factor from a metric's value to the shown value."""
    return 100.0 if is_share(metric) else 1.0


def decimals(deviations: Iterable[float], metric: str) -> int | None:
    """The decimals of a column that mean something in view of its deviations: those of the middle deviation.

    None without a deviation, and where deviations differ so much that each cell needs its own decimals.
    """
    known = [scale(metric) * each for each in deviations if math.isfinite(each) and each > 0]
    if not known or max(known) > MAX_RATIO * min(known):
        return None
    middle = statistics.median_low(known)
    power = math.floor(math.log10(middle))
    two = round(middle / 10.0 ** (power - 1), 6) <= TWO_DIGITS_TO
    return min(MAX_DECIMALS, max(0, (1 if two else 0) - power))


def value(number: float, metric: str, digits: int | None = None, most: int = 3) -> str:
    """A value of a metric without its unit, accuracies in percent; a dash for no value.

    `digits`: the decimals. One that would look like zero with these has up to `most` digits in their place.
    """
    shown = _rounded(number, metric, digits)
    if number == 0 or not math.isfinite(number) or _is_seen(shown):
        return shown
    return (MINUS if number < 0 else "") + short_number(scale(metric) * abs(number), most)


def _rounded(number: float, metric: str, digits: int | None) -> str:
    """A value of a metric with these decimals, which may all be zeros; with an exponent if it is large."""
    if not math.isfinite(number):
        return NONE if math.isnan(number) else str(number)
    shown = scale(metric) * abs(number)
    if (digits is None and not is_share(metric)) or (shown >= LARGE and not unit(metric)):
        words = amount(shown)
    else:
        words = f"{shown:,.{1 if digits is None else digits}f}"
    return (MINUS if number < 0 and _is_seen(words) else "") + words


def _is_seen(words: str) -> bool:
    """Whether a number does not look like zero."""
    return re.search("[1-9]", words) is not None


def spread(values: Sequence[float], metric: str, deviation: float | None = None, digits: int | None = None) -> str:
    """Mean ± `deviation` (None: the standard deviation of the values, which a single value does not have).

    `digits`: None are those that this deviation needs.
    """
    deviation = std(values) if deviation is None else deviation
    digits = decimals([deviation], metric) if digits is None else digits
    if math.isnan(deviation):
        return value(mean(values), metric, digits)
    may_be_zero = _is_seen(_rounded(deviation, metric, digits))  # the mean, beside a deviation that is larger
    shown = (_rounded if may_be_zero else value)(mean(values), metric, digits)
    return f"{shown} {PLUS_MINUS} {value(deviation, metric, digits, most=2)}"


def difference(number: float, metric: str, digits: int | None = None, most: int = 1) -> str:
    """A difference of two values of a metric, with its sign.

    One that would look like zero has up to `most` digits, unless it is one of rounding.
    """
    shown = (_rounded if abs(number) < NOISE else partial(value, most=most))(abs(number), metric, digits)
    return (("+" if number > 0 else MINUS) if _is_seen(shown) else "") + shown


def differences(low: float, high: float, metric: str, digits: int | None = None) -> str:
    """The ends of an interval of differences, with more digits where two tiny ones would look equal."""
    ends = [[difference(end, metric, digits, most) for end in (low, high)] for most in (1, 2, 3)]
    return " to ".join(next((each for each in ends if each[0] != each[1]), ends[0]))


def amount(number: float) -> str:
    """A count or a cost, with about four digits."""
    if math.isnan(number):
        return NONE
    if number == 0 or 0.01 <= abs(number) < LARGE:
        return f"{number:,.0f}" if abs(number) >= 1000 or number == int(number) else f"{number:.4g}"
    return short_number(number)


def readable(unit: str, values: Iterable[float]) -> tuple[str, float]:
    """The unit in which the largest of some values of a cost is read well, and the factor to it."""
    units, factor = PREFIXES.get(unit, (unit,)), 1.0
    place = units.index(unit)
    largest = max((abs(each) for each in values if math.isfinite(each)), default=0.0)
    while largest * factor >= MANY and place + 1 < len(units):
        place, factor = place + 1, factor / 1000
    while 0 < largest * factor < FEW and place > 0:
        place, factor = place - 1, factor * 1000
    return units[place], factor


def probability(p: float) -> str:
    """A p-value."""
    return NONE if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def judged(run: Run) -> str:
    """The rule of a run's objective in words, e.g. `largest test/accuracy of the last 5 evaluations`."""
    last, best = run.evaluation.get("last", 5), "smallest" if run.lower_is_better else "largest"
    rules = {
        "best_of_last": f"{best} {run.metric} of the last {last} evaluations",
        "mean_of_last": f"mean {run.metric} of the last {last} evaluations",
        "best": f"best {run.metric}",
        "last": f"last {run.metric}",
    }
    return rules.get(run.rule, f"{run.rule} of {run.metric}")


def remarks(groups: Sequence[SeedGroup]) -> tuple[str, ...]:
    """Remarks on the runs of a cell: seeds that have not finished, in the words of `states`, whose objective is not
    finite, or that have a warning.

    If no seed has a result, the remarks say how far each seed is.
    """
    runs = [run for each in groups for run in each.runs if not run.finished]
    failed = sum(run.state == states.FAILED for run in runs)
    lines = [f"{failed} {states.FAILED}"] if failed else []
    if any(each.finished for each in groups):
        lines, runs = states.counted((run.state for run in runs), not_finite(groups)), []
    for run in runs:
        if run.state != states.FAILED:
            so_far = run.summary["last"] if run.rows else math.nan
            reached = "" if math.isnan(so_far) else f", {with_unit(so_far, run.metric)} so far"
            lines.append(f"seed {run.seed}: {run.status}{reached}")
    lines += [f"seed {run.seed}: {warning}" for each in groups for run in each.runs for warning in run.warnings]
    return tuple(lines[:3] + ([f"and {len(lines) - 3} more"] if len(lines) > 3 else []))


def not_counted(group: SeedGroup) -> list[str]:
    """The runs left out of a setting, each with the run of its seed that counts."""
    counting = {run.seed: run.name for run in group.runs}
    return [f"{run.name} ({counting[run.seed]} counts)" for run in group.left_out]


def not_finite(groups: Iterable[SeedGroup]) -> int:
    """The number of finished seeds whose objective is not finite, without those of 0 rounds, which have none."""
    return sum(not math.isfinite(value) for each in groups if each.runs[0].rounds for value in each.finished.values())


def without_result(groups: Sequence[SeedGroup]) -> str:
    """Why no seed has a finite objective: in the words of `states`, or that no evaluation counts."""
    found = states.without_result(run.state for each in groups for run in each.runs)
    return found if found != states.NOT_FINITE or not_finite(groups) else NO_EVALUATION


def with_unit(number: float, metric: str, digits: int | None = None) -> str:
    """A value of a metric with its unit, e.g. `87.3 %`."""
    return f"{value(number, metric, digits)}\N{NO-BREAK SPACE}{unit(metric)}".rstrip()


def together(names: Sequence[str]) -> str:
    """Some names, of which only the first are told if there are many."""
    return listed([*names[:MAX_TIED], *([f"{len(names) - MAX_TIED} more"] if len(names) > MAX_TIED else [])])


def several(words: Sequence[str]) -> str:
    """The first of some runs or jobs, and how many more there are."""
    more = [f"and {len(words) - MAX_NAMED} more"] if len(words) > MAX_NAMED else []
    return "; ".join([*words[:MAX_NAMED], *more])


def listed(words: Sequence[str]) -> str:
    """At least one word as a list in a sentence: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
