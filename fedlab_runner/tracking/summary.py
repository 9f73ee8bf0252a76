"""The summary of a run: the few numbers that papers report."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedlab_runner.core.metric_names import charted
from fedlab_runner.tracking.metric_direction import lower_is_better

RULES = ("best_of_last", "mean_of_last", "best", "last")  # values of `evaluation.summary`


def summarise(
    rows: Sequence[dict[str, Any]],
    metric: str,
    rule: str,
    last: int,
    every: int,
    rounds: int,
    target: float | None = None,
) -> dict[str, Any]:
    """The four summaries of `metric` over a run's evaluations, with that of `rule` as the `objective`.

    - The evaluations are those of `evaluations`.
    - If there are fewer than `last` evaluations, all count; if there are none, each value is NaN. The mean of values
      with a NaN is NaN; the best value ignores NaN.
    - The best value is the smallest where smaller is better, as for a loss, and the largest otherwise.
    - `std_of_last` is the standard deviation of the last values (divided by n).
    - `final` holds the metrics of the last row and `at_best` those of the best round, except metrics for files only.
    - With a `target`, `rounds_to_target` is the first evaluated round whose value is as good; None if there is none.
    - `warnings` is present only if the run has warnings.
    """
    assert rule in RULES and last >= 1 and every >= 1, (rule, last, every)
    found = evaluations(rows, metric, every, rounds)
    values = [float(row[metric]) for row in found]
    tail = values[-last:]
    finite = bool(tail) and all(map(math.isfinite, tail))
    best_value, best_round = _best(found, metric)
    final = charted(rows[-1]) if rows else {}
    at_best = next((charted(row) for row in found if row["round"] == best_round), {})
    at_best.pop("round", None)
    summaries: dict[str, Any] = {
        "best_of_last": _best(found[-last:], metric)[0],
        "mean_of_last": statistics.fmean(tail) if finite else math.nan,
        "std_of_last": statistics.pstdev(tail) if finite else math.nan,
        "best": best_value,
        "best_round": best_round,
        "last": values[-1] if values else math.nan,
    }
    if target is not None:
        summaries["rounds_to_target"] = first_as_good(found, metric, target)
    if (still := standstill(rows)) is not None:
        summaries["warnings"] = [still]
    return {
        "metric": metric,
        "rule": rule,
        "objective": summaries[rule],
        "rounds": final.pop("round", -1),
        "evaluations": len(values),
        **summaries,
        "at_best": dict(sorted(at_best.items())),
        "final": dict(sorted(final.items())),
    }


def evaluations(rows: Sequence[dict[str, Any]], metric: str, every: int, rounds: int) -> list[dict[str, Any]]:
    """The rows from round 1 on that hold the metric, at multiples of `every` and at the last round, `rounds`.

    So an extended run has the evaluations of a run that never stopped.
    """
    found = [row for row in rows if row["round"] >= 1 and metric in row]
    return [row for row in found if row["round"] % every == 0 or row["round"] == rounds]


def first_as_good(rows: Sequence[dict[str, Any]], metric: str, target: float) -> int | None:
    """The round of the first row whose metric is as good as the target; None if there is none."""
    sign = -1 if lower_is_better(metric) else 1
    return next((row["round"] for row in rows if sign * float(row[metric]) >= sign * target), None)


def standstill(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """A warning if every evaluation equals the first model's, bit for bit; else None."""
    first = {key: value for key, value in rows[0].items() if key != "round"} if rows else {}
    later = [row for row in rows[1:] if first.keys() <= row.keys()]
    if not first or not later or any(row[key] != value for row in later for key, value in first.items()):
        return None
    arrived = sum(row.get("late/arrived", 0) for row in rows)
    why = f", and {arrived:.0f} updates have arrived" if any("late/arrived" in row for row in rows) else ""
    return f"the evaluated model never changed: each evaluation is that of the first model{why}"


def _best(rows: Sequence[dict[str, Any]], metric: str) -> tuple[float, int | None]:
    """The best value and the first round with it."""
    sign = -1 if lower_is_better(metric) else 1
    known = [(sign * float(row[metric]), -row["round"]) for row in rows if not math.isnan(row[metric])]
    if not known:
        return math.nan, None
    value, minus_round = max(known)
    return sign * value, -minus_round
