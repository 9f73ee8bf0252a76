"""Metric keys that several modules use (prefixes, and the cells of the evaluation matrix), and the units of metrics."""

import math
from collections.abc import Mapping
from typing import Any

from fedlab_runner.utils.short_number import short_number

COUNT_PREFIX = "late/staleness_count/"  # + staleness: how many updates arrived with that staleness in a round
TRUE_COSINE_PREFIX = "analysis/true_cosine/"  # + a later round: cosine between the true updates of the two rounds
_TOO_MANY = (COUNT_PREFIX, TRUE_COSINE_PREFIX)  # metrics of which a service would draw too many charts

# The evaluation matrix: a cell `<model>/<data>` says whose model is tested on whose examples (docs/metrics.md).
MODELS = ("server", "client", "tuned")
DATA = ("global", "own", "unseen", "validation", "train")
# What follows the cell and `_` in a key. A key without it is the mean accuracy over clients, which count alike.
SPREAD = ("", "std", "worst_decile", "worst", "loss")
WEIGHTED = ("weighted", "weighted_std", "weighted_worst_decile", "weighted_loss")  # by examples


def cell_of(key: str) -> str | None:
    """The cell of the evaluation matrix that a metric belongs to, such as `server/own` for `server/own_std`; or
    None.
    """
    model, _, rest = key.partition("/")
    data, _, statistic = rest.partition("_")
    there = model in MODELS and data in DATA and statistic in (*SPREAD, *WEIGHTED)
    return f"{model}/{data}" if there else None


def charted(row: Mapping[str, Any]) -> dict[str, Any]:
    """A round without the metrics that are for the run's files alone."""
    return {key: value for key, value in row.items() if not key.startswith(_TOO_MANY)}


def is_share(key: str) -> bool:
    """Whether a metric is a share of examples, shown in percent: an accuracy, or a spread of accuracies."""
    return "accuracy" in key or (cell_of(key) is not None and not key.endswith("loss"))


def not_a_share(key: str, target: float | None) -> bool:
    """Whether a metric is a share of examples, and its target is none: above 1, as a percentage is."""
    return is_share(key) and target is not None and target > 1


LARGE = 1e6  # from which on a number without a unit has an exponent

# The units of metrics, by key or by the end of a key. Shares, shown in percent, are not listed.
_UNITS = {"_mb": "MB", "_gflops": "GFLOPs", "time/": "s", "late/staleness": "rounds"}


def shown(value: float | None, key: str) -> str:
    """A value of a metric with its unit, for people: `87.30 %`, `0.159 MB`, `2.321`, `3e36`; a dash for no value."""
    if value is None or math.isnan(value):
        return "-"
    if is_share(key):
        return f"{100 * value:.2f} %"
    unit = unit_of(key)
    whole = float(value).is_integer() and (unit or abs(value) < LARGE)
    return f"{value:,.0f} {unit}".rstrip() if whole else f"{short_number(value, 4)} {unit}".rstrip()


def unit_of(key: str) -> str:
    """The unit of a metric that is not a share; empty if it has none."""
    return next((unit for part, unit in _UNITS.items() if key.endswith(part) or key.startswith(part)), "")
