"""Per-FedAvg: without an inner step it is FedAvg; Hessian-free, it descends the loss after one gradient step."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.core.federation import Federation
from tests.helpers.identities import BUILDS, LATE, close, trained
from tests.helpers.toy import RAGGED, algorithm, federation, home, local, mlp, normed, run

WHOLE = local(epochs=1, batch_size=64)  # one step on all examples


@pytest.mark.parametrize("variant", ["first_order", "hessian_free"])
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("setting", [{}, LATE], ids=["synchronous", "late"])
def test_without_an_inner_step_it_is_fedavg(setting: dict[str, Any], build: Any, variant: str) -> None:
    """On the same minibatches D', with momentum and bounds."""
    how = setting | {"build": build, "training": local(momentum=0.5, clip_norm=0.5, update_norm=0.5)}
    mine = trained("perfedavg", 4, how, inner_lr=0.0, variant=variant, weighting="size")
    close(mine, trained("fedavg", 4, how))


def loss_of(fed: Federation, params: Tensor, client: int) -> Tensor:
    inputs, targets = fed.client_data.examples(torch.from_numpy(fed.client_data.members(client)))
    return nn.functional.cross_entropy(fed.family.forward(fed.family.views(params), inputs), targets)


def test_hessian_free_steps_follow_the_gradient_of_the_loss_after_a_step_and_first_order_ones_do_not() -> None:
    """With D = D' = D'', all examples: the gradient of f(w - alpha grad f(w)), by differentiating twice."""
    alpha, found = 0.5, {}
    for variant in ("hessian_free", "first_order"):
        fed = federation(RAGGED[3:4], training=WHOLE, build=mlp)
        built = algorithm("perfedavg", inner_lr=alpha, variant=variant)
        x = built.init(fed).params
        found[variant] = (x - run(built, fed, 1).params) / fed.local.lr
    w = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss_of(fed, w, 0), w, create_graph=True)
    (exact,) = torch.autograd.grad(loss_of(fed, w - alpha * g, 0), w)
    assert (found["hessian_free"] - exact).abs().max() < 1e-6 < 1e-3 < (found["first_order"] - exact).abs().max()


@pytest.mark.parametrize(("build", "kept"), [(mlp, "none"), (mlp, "head"), (normed, "none")])
def test_a_clients_own_model_is_a_step_along_its_gradient(build: Any, kept: str) -> None:
    """From its own values where it has some; batch norm's statistics are those of the pass."""
    fed = federation(RAGGED[1:], build=build, training=WHOLE, home=home(kept))
    built = algorithm("perfedavg", inner_lr=0.4)
    state = run(built, fed, 2)
    before = fed.collect()
    own = built.client_models(state, fed, np.arange(fed.num_clients))
    assert fed.collect() == before, "a test is no training"
    at = fed.home.fill(state.params, np.arange(fed.num_clients))
    for client, model in enumerate(own):
        net = build().double()
        net.load_state_dict(fed.family.state_dict(at[client]), strict=False)
        inputs, targets = fed.client_data.examples(torch.from_numpy(fed.client_data.members(client)))
        nn.functional.cross_entropy(net(inputs), targets).backward()
        torch.optim.SGD(net.parameters(), 0.4).step()
        torch.testing.assert_close(model, fed.family.vector(net), rtol=0, atol=1e-12)
