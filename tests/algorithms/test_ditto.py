"""Ditto: its server is FedAvg's; without a pull to the server's model, personal models are trained alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.identities import BUILDS, EXECUTORS, LATE
from tests.helpers.toy import algorithm, federation, local, run, stacked

SETTINGS: list[dict[str, Any]] = [{}, LATE, LATE | {"training": local(momentum=0.5, clip_norm=0.5, update_norm=0.5)}]


def personal(built: Any, how: dict[str, Any], rounds: int = 5) -> tuple[Any, Tensor]:
    fed = federation(**how)
    state = run(built, fed, rounds)
    return state, built.client_models(state, fed, np.arange(fed.num_clients))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("setting", SETTINGS, ids=["synchronous", "late", "late, bounded"])
def test_its_server_is_fedavgs_to_the_bit_and_without_lam_its_clients_stand_alone(
    setting: dict[str, Any], build: Any, executor: Any
) -> None:
    how = setting | {"build": build, "executor": executor}
    state, own = personal(algorithm("ditto", lam=0.0), how, 3)
    assert torch.equal(state.params, run(algorithm("fedavg"), federation(**how), 3).params)
    torch.testing.assert_close(own, stacked(run(algorithm("standalone"), federation(**how), 3).own), rtol=0, atol=1e-10)


def test_a_strong_pull_keeps_personal_models_at_the_received_one() -> None:
    how = {"training": local(lr=1e-3, epochs=40)}
    (state, far), (_, near) = (personal(algorithm("ditto", lam=lam), how, 1) for lam in (0.0, 1000.0))
    received = state.first
    assert (near - received).abs().max() < 0.02 * (far - received).abs().max()


def test_what_the_server_discards_stays_with_the_client() -> None:
    every, discarding = (personal(algorithm("ditto", lam=0.0, late_policy=p), LATE) for p in ("delta", "discard"))
    assert torch.equal(every[1], discarding[1]) and not torch.equal(every[0].params, discarding[0].params)


@pytest.mark.parametrize("name", ["apfl", "ditto", "pfedme"])
def test_places_give_the_same_bits(name: str, tmp_path: Path) -> None:
    found = [
        personal(algorithm(name, store_on=place), LATE | {"folder": tmp_path / place})[1]
        for place in ("device", "host", "disk")
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert list((tmp_path / "disk").rglob("*.bin")) and not list((tmp_path / "host").rglob("*.bin"))
