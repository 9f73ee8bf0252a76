"""Whether a larger or a smaller value of a metric is better, by its key."""

import re
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedlab_runner.utils.errors import UserError

# Words of a key; the last known word decides, so that `accuracy_std` is a spread and no accuracy.
_LOWER = {
    *("loss", "losses", "error", "errors", "err", "nll", "perplexity", "mse", "rmse", "mae", "std", "variance"),
    *("divergence", "time", "seconds", "mb", "bytes", "flops", "gflops", "models", "staleness", "rounds"),
    *("distance", "cost"),
    "objective",  # what an algorithm minimises: FedCDA's loss and divergence
    *("clipped", "finite", "negative"),  # updates/not_finite counts non-finite updates
}
_HIGHER = {"accuracy", "precision", "recall", "f1", "auc"}  # words of metrics of which larger values are better
_COSTS = {"comm", "cost", "time"}  # groups of keys whose metrics are all costs


def lower_is_better(key: str) -> bool:
    """Whether a smaller value of the metric is a better one.

    `key` is `<group>/<name>` or `<group>/<name>/<of what>`, e.g. `test/loss` or `test/accuracy_class/error`; the third
    part names a class or an architecture of the user and does not count. Losses, objectives, errors, spreads,
    distances, costs, times, bytes, operations and counts of failures are better when they are smaller. Accuracies and
    all unknown metrics, such as `analysis/update_cosine_mean`, are better when they are larger.
    """
    group, _, rest = key.partition("/")
    if rest and group in _COSTS:
        return True
    words = re.findall(r"[a-z0-9]+", (rest or group).partition("/")[0].lower())
    known = [word for word in words if word in _LOWER or word in _HIGHER]
    return bool(known) and known[-1] in _LOWER


def direction_of(key: str) -> str:
    """The direction of a search over the metric: `minimize` or `maximize`."""
    return "minimize" if lower_is_better(key) else "maximize"


def check_direction(hydra: DictConfig, key: str) -> None:
    """Raises UserError where the run is part of a search for the worst values of the metric."""
    sweeper: Any = OmegaConf.to_container(hydra.sweeper, resolve=False)
    told, wanted = sweeper.get("direction"), direction_of(key)
    told = getattr(told, "name", told)  # a text, or a member of an enumeration
    if hydra.mode == RunMode.MULTIRUN and told in {"minimize", "maximize"} - {wanted}:
        raise UserError(f"hydra.sweeper.direction must be {wanted} for evaluation.metric={key}, got {told}")
