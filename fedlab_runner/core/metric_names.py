"""Metric keys that several modules use: prefixes, and the cells of the evaluation matrix."""

import math

COUNT_PREFIX = "late/staleness_count/"  # + staleness: how many updates arrived with that staleness in a round
TRUE_COSINE_PREFIX = "analysis/true_cosine/"  # + a later round: cosine between the true updates of the two rounds
FILE_ONLY = (COUNT_PREFIX, TRUE_COSINE_PREFIX)  # not sent to W&B: there would be too many charts

# The evaluation matrix: a cell `<model>/<data>` says whose model is tested on whose examples (docs/metrics.md).
MODELS = ("server", "client", "tuned")
DATA = ("global", "own", "unseen", "validation", "train")
# What follows the cell and `_` in a key; nothing: the mean accuracy over clients, each counting alike.
SPREAD = ("", "std", "worst_decile", "worst", "loss")
WEIGHTED = ("weighted", "weighted_std", "weighted_worst_decile", "weighted_loss")  # by examples


def cell_of(key: str) -> str | None:
    """The cell of the evaluation matrix that a metric is of: `server/own` of `server/own_std`; None: of no cell."""
    model, _, rest = key.partition("/")
    data, _, statistic = rest.partition("_")
    there = model in MODELS and data in DATA and statistic in (*SPREAD, *WEIGHTED)
    return f"{model}/{data}" if there else None


def is_share(key: str) -> bool:
    """Whether a metric is a share of examples, which people read in percent: an accuracy, or a spread of accuracies."""
    return "accuracy" in key or (cell_of(key) is not None and not key.endswith("loss"))


# The units of metrics, by key or by the end of a key; a share is shown in percent and has none here.
_UNITS = {"_mb": "MB", "_gflops": "GFLOPs", "time/": "s", "late/staleness": "rounds"}


def shown(value: float | None, key: str) -> str:
    """A value of a metric with its unit, for people: `87.30 %`, `0.159 MB`, `2.3207`; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    if is_share(key):
        return f"{100 * value:.2f} %"
    number = f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
    return f"{number} {unit_of(key)}".rstrip()


def unit_of(key: str) -> str:
    """The unit of a metric that is no share; empty where it has none."""
    return next((unit for part, unit in _UNITS.items() if key.endswith(part) or key.startswith(part)), "")
