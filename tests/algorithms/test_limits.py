"""Identities that several methods have: one participant, no arrivals."""

from typing import Any

import pytest
import torch

from tests.helpers.identities import BUILDS, close, trained
from tests.helpers.toy import RAGGED, federation


@pytest.mark.parametrize("name", ["fednova", "fedexp", "fedsam"])
@pytest.mark.parametrize("build", BUILDS)
def test_a_single_participant_is_fedavg(name: str, build: Any) -> None:
    """FedExP's factor is 1, FedNova's normalisation cancels; FedSAM needs rho = 0."""
    overrides = {"rho": 0.0} if name == "fedsam" else {}
    fed = {"sizes": [20], "build": build}
    close(trained(name, 3, fed, **overrides), trained("fedavg", 3, fed))


@pytest.mark.parametrize("name", ["fednova", "fedexp", "fedsam", "fedlaw", "fedbe", "fedgen"])
def test_a_round_without_arrivals_changes_nothing(name: str) -> None:
    fed = {"sizes": RAGGED, "cohort": 2, "std": 1e6}
    assert torch.equal(trained(name, 3, fed), federation().family.init(0))
