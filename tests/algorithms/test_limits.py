"""Identities that several methods have: one participant, no arrivals."""

from typing import Any

import pytest

from tests.helpers.identities import BUILDS, close, trained


@pytest.mark.parametrize("name", ["fednova", "fedexp", "fedsam"])
@pytest.mark.parametrize("build", BUILDS)
def test_a_single_participant_is_fedavg(name: str, build: Any) -> None:
    """FedExP's factor is 1, FedNova's normalisation cancels; FedSAM needs rho = 0."""
    overrides = {"rho": 0.0} if name == "fedsam" else {}
    fed = {"sizes": [20], "build": build}
    close(trained(name, 3, fed, **overrides), trained("fedavg", 3, fed))
