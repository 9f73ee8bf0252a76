"""The direction of every metric that the package writes, and of a user's own."""

import pytest

from fedlab_runner.tracking.metric_direction import lower_is_better

LOWER = (
    *(
        "test/loss",
        "train/loss",
        "server/own_loss",
        "client/train_weighted_loss",
        "algorithm/search_loss_last",
        "loss",
        "test/error",
        "mine/MSE",
    ),
    *("comm/upload_mb", "comm/download_mb", "comm/models", "cost/server_gflops", "cost/client_gflops"),
    *("cost/server_cache_mb", "time/round", "time/wall", "algorithm/selection_seconds", "rounds_to_target"),
    *("client/own_std", "server/unseen_weighted_std", "late/staleness_mean", "late/staleness_count/3"),
    *("test/accuracy_std", "updates/clipped", "updates/not_finite", "algorithm/coefficients_negative"),
    *("algorithm/matching_cost", "algorithm/consensus_distance", "algorithm/objective"),
)
HIGHER = (
    *("test/accuracy", "server/own", "client/validation", "tuned/own_worst_decile", "accuracy"),
    *("client/global_weighted", "client/own_worst", "test/accuracy_class/3", "test/accuracy_model/cnn"),
    *("test/accuracy_class/error", "test/accuracy_class/loss_of_time"),  # a class may have any name
    *("analysis/update_cosine_mean", "algorithm/probe_cosine_first", "late/arrived", "mine/f1", "test/lossless", ""),
)


@pytest.mark.parametrize("key", LOWER)
def test_less_is_better(key: str) -> None:
    assert lower_is_better(key)


@pytest.mark.parametrize("key", HIGHER)
def test_more_is_better(key: str) -> None:
    assert not lower_is_better(key)
