"""The metrics of a round: what an own algorithm may set, and what it must not replace."""

from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.core.round_metrics import RoundMetrics
from fedlab_runner.utils.errors import UserError


def test_a_number_of_any_library_is_reported() -> None:
    metrics = RoundMetrics()
    metrics.report(a=1, b=2.5, c=np.float32(3.0), d=np.int64(4), e=torch.tensor(5.0), f=True, g=torch.ones(1))
    assert {key: float(value) for key, value in metrics.values.items()} == dict(
        zip((f"algorithm/{name}" for name in "abcdefg"), (1, 2.5, 3, 4, 5, 1, 1), strict=True)
    )


def test_a_round_may_have_no_value_of_a_metric() -> None:
    metrics = RoundMetrics()
    metrics.report(a=None)  # type: ignore[arg-type]  # as own classes do, without a type checker
    assert metrics.values == {"algorithm/a": None}


@pytest.mark.parametrize("value", [torch.ones(3), np.ones(2), "text", [1.0], {"a": 1.0}], ids=str)
def test_what_is_no_number_is_one_line(value: Any) -> None:
    with pytest.raises(UserError, match=r"^the metric 'algorithm/x' must be a number, got [^\n]+$"):
        RoundMetrics().report(x=value)


@pytest.mark.parametrize("key", ["round", "train/loss", "test/accuracy", "comm/upload_mb", "local/lr", "mine"])
def test_a_metric_of_the_run_is_not_replaced(key: str) -> None:
    metrics = RoundMetrics()
    metrics.record_loss(0.5, 10)
    with pytest.raises(UserError, match=rf"^an algorithm must not set the metric '{key}': fed.metrics.report"):
        metrics.record({"late/arrived": 3, key: 0.0})
    assert metrics.values == {"train/loss": 0.5}
