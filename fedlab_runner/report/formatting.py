"""Numbers and remarks in the form in which people read them."""

import math
import re
from collections.abc import Sequence
from textwrap import shorten

from fedlab_runner.core.metric_names import is_share
from fedlab_runner.report.grouping import SeedGroup
from fedlab_runner.report.runs import Run
from fedlab_runner.report.stats import mean, std
from fedlab_runner.sweep import states

NONE, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def value(number: float, metric: str, digits: int = 1) -> str:
    """A value of a metric, accuracies in percent; a dash where there is none."""
    if math.isnan(number):
        return NONE
    return f"{100 * number:.{digits}f}" if is_share(metric) else amount(number)


def spread(values: Sequence[float], metric: str, deviation: float | None = None) -> str:
    """Mean ± deviation: the standard deviation of the values (a single value has none), unless another is given."""
    deviation = std(values) if deviation is None else deviation
    return value(mean(values), metric) + ("" if math.isnan(deviation) else f" ± {value(deviation, metric)}")


def difference(number: float, metric: str) -> str:
    """A difference of two values of a metric, with its sign."""
    shown = value(abs(number), metric)
    return shown if math.isnan(number) or not re.search("[1-9]", shown) else ("+" if number > 0 else MINUS) + shown


def amount(number: float) -> str:
    """A count or a cost, with about four digits."""
    if math.isnan(number):
        return NONE
    if number == 0 or 0.01 <= abs(number) < 1e6:
        return f"{number:,.0f}" if abs(number) >= 1000 or number == int(number) else f"{number:.4g}"
    return f"{number:.3g}"


def probability(p: float) -> str:
    """A p-value."""
    return NONE if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def times(count: int, what: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {what}" + ("" if count == 1 else "s")


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
    """Remarks on the runs of a cell: seeds that have not finished, in the words of `states`, or have a warning."""
    runs = [run for each in groups for run in each.runs if not run.finished]
    failed = [run for run in runs if run.state == states.FAILED]
    lines = (
        [f"{times(len(failed), 'seed')} failed: {shorten(str(failed[0].error), 100, placeholder=' …')}"]
        if failed
        else []
    )
    for run in runs:
        if run.state != states.FAILED:
            so_far = run.summary["last"] if run.rows else math.nan
            reached = "" if math.isnan(so_far) else f", {value(so_far, run.metric)} so far"
            lines.append(f"seed {run.seed}: {run.status}{reached}")
    lines += [f"seed {run.seed}: {warning}" for each in groups for run in each.runs for warning in run.warnings]
    return tuple(lines[:3] + ([f"and {len(lines) - 3} more"] if len(lines) > 3 else []))
