"""APFL: without a part of its own it is FedAvg, with nothing else a client stands alone; alpha follows its gradient."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.helpers.identities import BUILDS, LATE, close
from tests.helpers.toy import RAGGED, algorithm, federation, home, local, run, stacked

BOUNDED = local(momentum=0.5, clip_norm=0.5, update_norm=0.3)
SETTINGS: list[dict[str, Any]] = [{}, LATE, LATE | {"training": BOUNDED}]
NAMES = ["synchronous", "late", "late, bounded"]


def personal(built: Any, how: dict[str, Any], rounds: int = 5) -> tuple[Any, Tensor]:
    fed = federation(**how)
    state = run(built, fed, rounds)
    return state, built.client_models(state, fed, np.arange(fed.num_clients))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_alpha_0_is_fedavg_and_alpha_1_is_stand_alone(setting: dict[str, Any], build: Any) -> None:
    """Its server is FedAvg's whatever alpha is; momentum and bounds act on each of the two models alone."""
    how = setting | {"build": build}
    fed = federation(**how)
    p, avg = fed.family.num_params, run(algorithm("fedavg"), fed, 5)
    none, of_none = personal(algorithm("apfl", alpha=0.0, weighting="size"), how)
    whole, of_whole = personal(algorithm("apfl", alpha=1.0, weighting="size"), how)
    close(none.params, avg.params)
    close(whole.params, avg.params)
    close(of_none[:, :p], avg.params[:p].expand(len(of_none), -1))
    close(of_whole, stacked(run(algorithm("standalone"), federation(**how), 5).own))


@pytest.mark.parametrize("kept", ["none", "head"])
def test_alpha_moves_along_its_gradient_once_a_round(kept: str) -> None:
    """Of w a client has its own values at home; the model that it uses has them too."""
    fed = federation(RAGGED, training=local(epochs=1, batch_size=64), home=home(kept))  # of all examples
    built, everyone = algorithm("apfl", alpha=0.5, adaptive=True), np.arange(len(RAGGED))
    before = run(built, fed, 2)
    w = fed.home.fill(before.params, everyone)
    after = run(built, fed, 1, first=2, state=before)
    now, used = fed.home.fill(after.params, everyone), built.client_models(after, fed, everyone)
    for client, row in before.personal.items():
        v, alpha = row[:-1], row[-1].clone().requires_grad_()
        inputs, targets = fed.client_data.examples(torch.from_numpy(fed.client_data.members(client)))
        mixture = alpha * v + (1 - alpha) * w[client]
        loss = nn.functional.cross_entropy(fed.family.forward(fed.family.views(mixture), inputs), targets)
        (g,) = torch.autograd.grad(loss, alpha)
        expected = (alpha - fed.local.lr * g).detach().clamp(0, 1)
        own, share = after.personal[client][:-1], after.personal[client][-1]
        torch.testing.assert_close(share, expected, rtol=0, atol=1e-12)
        close(used[client], share * own + (1 - share) * now[client])


def test_alpha_stays_in_its_interval() -> None:
    far = run(algorithm("apfl", alpha=0.5, adaptive=True), federation(RAGGED, training=local(lr=3.0)), 8)
    alphas = torch.stack([row[-1] for row in far.personal.values()])
    assert alphas.min() >= 0 and alphas.max() == 1 and len(set(alphas.tolist())) > 1
