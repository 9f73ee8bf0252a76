"""Which way a metric is good, told by its key: summaries, sweeps, pruning and reports all ask here."""

import re
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedlab_runner.utils.errors import UserError

# Words of a key; the last one that is known decides, so that `accuracy_std` is a spread and no accuracy.
_LOWER = {
    *("loss", "losses", "error", "errors", "err", "nll", "perplexity", "mse", "rmse", "mae", "std", "variance"),
    *("divergence", "time", "seconds", "mb", "bytes", "flops", "gflops", "models", "staleness", "rounds"),
    *("clipped", "finite", "negative"),  # updates/not_finite counts those that are not
}
_HIGHER = {"accuracy", "precision", "recall", "f1", "auc"}
_COSTS = {"comm", "cost", "time"}  # groups of keys in which everything is spent


def lower_is_better(key: str) -> bool:
    """Whether a smaller value of the metric is a better one.

    `key` is `<group>/<name>` or `<group>/<name>/<of what>`, e.g. `test/loss` or `test/accuracy_class/error`; the third
    part is a class or an architecture of the user's and says nothing. Losses, errors, spreads, times, bytes, operations
    and counts of what went wrong are better when they are smaller. Accuracies, and all that is not known here, such as
    `analysis/update_cosine_mean`, are better when they are larger.
    """
    group, _, rest = key.partition("/")
    if rest and group in _COSTS:
        return True
    words = re.findall(r"[a-z0-9]+", (rest or group).partition("/")[0].lower())
    known = [word for word in words if word in _LOWER or word in _HIGHER]
    return bool(known) and known[-1] in _LOWER


def direction_of(key: str) -> str:
    """What a search does with the metric: `minimize` or `maximize`."""
    return "minimize" if lower_is_better(key) else "maximize"


def check_direction(hydra: DictConfig, key: str) -> None:
    """UserError where the search of which a run is a part looks for the worst values of the metric."""
    sweeper: Any = OmegaConf.to_container(hydra.sweeper, resolve=False)
    told, wanted = sweeper.get("direction"), direction_of(key)
    told = getattr(told, "name", told)  # a text, or a member of an enumeration
    if hydra.mode == RunMode.MULTIRUN and told in {"minimize", "maximize"} - {wanted}:
        raise UserError(f"hydra.sweeper.direction must be {wanted} for evaluation.metric={key}, got {told}")
