"""Hyperparameters out of range are refused in one line that begins with their name."""

from typing import Any

import pytest

from tests.helpers.toy import algorithm


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("fednova", {"mu": -1.0}, "mu must be >= 0, got -1.0"),
        *(
            (name, {"weighting": "length"}, "weighting must be one of size, uniform, got length")
            for name in ("fednova", "scaffold", "qfedavg", "hyfem")
        ),
        ("fedexp", {"eps": -1e-3}, "eps must be >= 0, got -0.001"),
        ("fedsam", {"rho": -0.1}, "rho must be >= 0, got -0.1"),
        ("fedsam", {"late_policy": "never"}, "late_policy must be one of delta, model, discard, got never"),
        ("fedlaw", {"lr_decay": 1.5}, r"lr_decay must be in \(0, 1\], got 1.5"),
        ("fedlaw", {"lr_decay_epochs": 0}, "lr_decay_epochs must be >= 1, got 0"),
        ("fedlaw", {"epochs": -1}, "epochs must be >= 0, got -1"),
        ("fedgen", {"alpha": -1.0}, "alpha must be >= 0, got -1.0"),
        ("fedgen", {"decay": 0.0}, r"decay must be in \(0, 1\], got 0.0"),
        ("fedgen", {"batch_size": 1}, "batch_size must be >= 2, got 1"),
        ("fedgen", {"gen_batch_size": 0}, "gen_batch_size must be >= 1, got 0"),
        ("fedgen", {"lr": 0.0}, "lr must be > 0, got 0.0"),
        ("fedbe", {"sampler": "swag"}, "sampler must be one of gaussian, dirichlet, got swag"),
        ("fedbe", {"num_samples": -1}, "num_samples must be >= 0, got -1"),
        ("fedbe", {"alpha": 0.0}, "alpha must be > 0, got 0.0"),
        ("fedbe", {"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        ("fedbe", {"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ("fedbe", {"swa_every": 0}, "swa_every must be >= 1, got 0"),
    ],
)
def test_bad_fields_name_themselves(name: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as error:
        algorithm(name, **overrides)
    assert isinstance(error.value.__cause__ or error.value, ValueError)
