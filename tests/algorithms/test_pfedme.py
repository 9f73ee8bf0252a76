"""pFedMe: with one inner step from w it is FedAvg; the more inner steps, the nearer it comes to Moreau's envelope."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.helpers.identities import BUILDS, LATE, close, trained
from tests.helpers.toy import CLASSES, FEATURES, algorithm, federation, home, local, run


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("setting", [{}, LATE], ids=["synchronous", "late"])
def test_with_one_inner_step_from_w_it_is_fedavg_with_the_product_of_the_rates(
    setting: dict[str, Any], build: Any
) -> None:
    """theta = w - inner_lr grad f(w), and so w moves by - lr lam inner_lr grad f(w)."""
    how = setting | {"build": build}
    cold: dict[str, Any] = {"inner_steps": 1, "warm_start": False, "weighting": "size"}
    mine = trained("pfedme", 4, how | {"training": local(lr=0.1)}, lam=4.0, inner_lr=0.25, **cold)
    close(mine, trained("fedavg", 4, how | {"training": local(lr=0.1)}))
    other = trained("pfedme", 4, how | {"training": local(lr=0.1)}, lam=4.0, inner_lr=0.5, **cold)
    close(other, trained("fedavg", 4, how | {"training": local(lr=0.2)}))


@pytest.mark.parametrize("kept", [[], ["weight"]], ids=["none", "weight"])
def test_w_follows_the_gradient_of_moreaus_envelope_and_theta_is_its_minimiser(kept: list[str]) -> None:
    """For a linear model on all examples at once, whose envelope has one minimiser (Eq 3 and 4). Of values at home w is
    the client's own.
    """

    def linear() -> nn.Module:
        return nn.Linear(FEATURES, CLASSES)

    lam, whole = 2.0, local(epochs=1, batch_size=12, lr=0.1)
    fed = federation([12], build=linear, training=whole, home=home("prefixes", prefixes=kept))
    built = algorithm("pfedme", lam=lam, inner_steps=100, inner_lr=0.2)
    state = run(built, fed, 1)
    x, theta = state.first, built.client_models(state, fed, np.arange(1))[0].clone().requires_grad_()
    w = fed.home.fill(state.params, np.arange(1))[0]
    torch.testing.assert_close(w, x - 0.1 * lam * (x - theta.detach()), rtol=0, atol=1e-12)
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    loss = nn.functional.cross_entropy(fed.family.forward(fed.family.views(theta), inputs), targets)
    (g,) = torch.autograd.grad(loss + lam / 2 * (theta - x).square().sum(), theta)
    assert g.abs().max() < 1e-10 and (theta - x).abs().max() > 0.05


def test_a_strong_pull_keeps_personal_models_at_the_shared_one() -> None:
    how: dict[str, Any] = {"sizes": [8, 8], "training": local(lr=1e-4)}
    apart = []
    for lam in (1.0, 1000.0):
        fed, built = federation(**how), algorithm("pfedme", lam=lam, inner_lr=5e-4, inner_steps=10)
        state = run(built, fed, 1)
        own = built.client_models(state, fed, np.arange(fed.num_clients))
        apart.append(float((own - state.params).abs().max()))
    assert apart[1] < 0.1 * apart[0]
