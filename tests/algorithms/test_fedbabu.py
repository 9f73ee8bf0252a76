"""FedBABU: with everything trained it is FedAvg; the head is never trained, and never sent."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.identities import BUILDS, LATE
from tests.helpers.toy import EQUAL, algorithm, federation, home, local, run, server_optimizer


@pytest.mark.parametrize("build", BUILDS)
def test_with_everything_trained_it_is_fedavg_to_the_bit(build: Any) -> None:
    babu, avg = (run(algorithm(name), federation(**LATE, build=build), 5) for name in ("fedbabu", "fedavg"))
    assert torch.equal(babu.params, avg.params)


@pytest.mark.parametrize("build", BUILDS)
def test_the_head_stays_as_it_was_drawn_and_the_body_does_not(build: Any) -> None:
    """With decay, and under a server optimiser that decays, which clients never see."""
    decaying = server_optimizer("adamw", weight_decay=0.1)
    how: dict[str, Any] = {"training": local(weight_decay=0.1, momentum=0.5), "optimizer": decaying}
    fed = federation(**LATE, build=build, home=home("head"), **how)
    built, mask, first = algorithm("fedbabu"), fed.home.mask(fed.family), fed.family.init(0)
    mine = built.client_models(run(built, fed, 6), fed, np.arange(10))
    assert torch.equal(mine[:, mask], first[mask].expand(10, -1)) and (mine[:, ~mask] != first[~mask]).all(1).all()


def test_the_body_alone_is_sent() -> None:
    fed = federation(EQUAL, home=home("head"))
    run(algorithm("fedbabu"), fed, 1)
    body = fed.family.size - fed.home.size
    assert body < fed.family.size
    for way in ("comm/download_mb", "comm/upload_mb"):
        assert fed.collect()[way] == pytest.approx(4 * body * 4 / 1e6)
