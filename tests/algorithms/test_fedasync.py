"""FedAsync: identities with other methods, and closed forms of its steps."""

from typing import Any

import pytest
import torch

from tests.helpers.identities import Sent, arrivals, close, evaluated
from tests.helpers.toy import algorithm, federation


def test_fedasync_with_one_fresh_client_and_full_weight_is_that_client() -> None:
    close(evaluated("fedasync", 2, fed={"sizes": [8]}, alpha=1.0), evaluated("fedavg", 2, fed={"sizes": [8]}))


def test_fedasync_without_weight_does_nothing() -> None:
    close(evaluated("fedasync", 3, alpha=0.0), federation().family.init(0))


@pytest.mark.parametrize(
    ("staleness", "keys", "expected"),
    [
        ("constant", {}, [0.5, 0.5, 0.5]),
        ("polynomial", {"a": 1.0}, [0.5, 0.25, 0.125]),
        ("hinge", {"a": 1.0, "b": 0.0}, [0.5, 0.25, 0.125]),
    ],
)
def test_fedasync_mixes_in_order_with_the_weight_of_its_staleness(
    staleness: str, keys: dict[str, float], expected: list[float]
) -> None:
    """s: polynomial (1 + tau)^-1 for tau 0, 1, 3; hinge 1 / (tau - 0 + 1)."""
    built: Any = algorithm("fedasync", alpha=0.5, staleness=staleness, **keys)
    rows = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    x = torch.tensor([8.0], dtype=torch.float64)
    state = type(built.init(federation([4])))(x)
    result = built.server_step(state, arrivals(rows, staleness=[0, 1, 3], upload=Sent), federation([4])).params
    for y, alpha in zip(rows, expected, strict=True):
        x = (1 - alpha) * x + alpha * y
    close(result, x)


def test_the_hinge_is_flat_up_to_b() -> None:
    built: Any = algorithm("fedasync", alpha=1.0, staleness="hinge")
    x = torch.zeros(1, dtype=torch.float64)
    ones = torch.ones(1, 1, dtype=torch.float64)
    fed = federation([4])
    state = type(built.init(fed))
    sent = [arrivals(ones, staleness=[tau], upload=Sent) for tau in (0, 4, 5, 8)]
    weights = [built.server_step(state(x), each, fed).params.item() for each in sent]
    assert weights == pytest.approx([1, 1, 1 / 11, 1 / 41])


def test_fedasync_with_rho_is_proximal_on_the_clients() -> None:
    fed = {"sizes": [8]}
    close(evaluated("fedasync", 1, fed, alpha=1.0, rho=0.3), evaluated("fedprox", 1, fed, mu=0.3))
