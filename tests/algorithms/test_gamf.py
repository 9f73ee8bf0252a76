"""GAMF: its two comparisons, and bad input. What it shares with FedMA is in `matching/test_neurons.py`."""

from typing import Any

import pytest
import torch
from hydra.errors import InstantiationException

from fedlab_runner.algorithms.shared.averaging import Models
from tests.helpers.identities import arrivals, close
from tests.helpers.neurons import copies, deep
from tests.helpers.toy import algorithm, federation


def test_two_models_are_matched_alike_together_and_pairwise() -> None:
    """Of two models each is compared with the other alone in both ways; of three the ways differ."""
    fed = federation([4], build=deep)
    _, models = copies(fed, 2)
    models = models + 0.3 * torch.randn(models.shape, generator=torch.Generator().manual_seed(0), dtype=models.dtype)

    def after(count: int, pairwise: bool) -> torch.Tensor:
        built: Any = algorithm("gamf", pairwise=pairwise)
        fed.begin(0, 1.0)
        found: torch.Tensor = built.server_step(built.init(fed), arrivals(models[:count], upload=Models), fed).params
        return found

    close(after(2, True), after(2, False))
    assert not torch.allclose(after(3, True), after(3, False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau": 0.0}, "tau must be > 0, got 0.0"),
        ({"tau_min": 0.0}, "tau_min must be > 0, got 0.0"),
        ({"tau_decay": 1.0}, "tau_decay must be in (0, 1), got 1.0"),
        ({"sinkhorn_steps": 0}, "sinkhorn_steps must be >= 1, got 0"),
        ({"max_iterations": 0}, "max_iterations must be >= 1, got 0"),
        ({"late_policy": "delta"}, "late_policy must be one of model, discard, got delta"),
        ({"weighting": "x"}, "weighting must be one of size, uniform, got x"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    """Hydra wraps what the constructor raises."""
    with pytest.raises(InstantiationException) as error:
        algorithm("gamf", **changes)
    assert str(error.value.__cause__) == message
