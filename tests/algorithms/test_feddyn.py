"""FedDyn: its first round is FedProx's, h is the mean of the clients' gradients, and it ends where these cancel."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.core.federation import Federation
from tests.helpers.identities import BUILDS, close, trained
from tests.helpers.toy import CLASSES, EQUAL, FEATURES, RAGGED, algorithm, federation, local, normed, run


@pytest.mark.parametrize("build", BUILDS)
def test_with_everyone_there_the_first_round_is_fedprox_with_twice_the_step(build: Any) -> None:
    """theta + mean Delta - h / alpha with h = -alpha mean Delta."""
    prox = trained("fedprox", 1, {"build": build}, mu=0.3, weighting="uniform", server_lr=2.0)
    close(trained("feddyn", 1, {"build": build}, alpha=0.3), prox)


@pytest.mark.parametrize("std", [0.0, 3.0])
def test_h_is_the_mean_of_all_clients_gradients(std: float) -> None:
    """However late they are, and of clients that have never reported it is zero."""
    fed = federation(RAGGED, cohort=3, std=std, build=normed)
    state: Any = algorithm("feddyn", alpha=0.2).init(fed)
    for round in range(8):
        state = run(algorithm("feddyn", alpha=0.2), fed, 1, first=round, state=state)
        known = [fed.row_store("device", len(state.h)).get(ref) for ref in state.g_k.values()]
        mean = torch.stack(known).sum(0) / len(RAGGED) if known else torch.zeros_like(state.h)
        torch.testing.assert_close(state.h, mean, rtol=0, atol=1e-12)
    assert len(state.g_k) > 2 and state.h.any()


def gradients(fed: Federation, x: Tensor) -> Tensor:
    """Each client's gradient at x [N, P]."""
    found, leaf = [], x.clone().requires_grad_()
    for i in range(fed.num_clients):
        inputs, targets = fed.client_data.examples(torch.from_numpy(fed.client_data.members(i)))
        logits = fed.family.forward(fed.family.views(leaf), inputs)
        found.append(torch.autograd.grad(nn.functional.cross_entropy(logits, targets), leaf)[0])
    return torch.stack(found)


def test_it_ends_at_the_minimum_of_the_mean_loss_where_fedavg_does_not() -> None:
    """The clients' own minima are far apart; in the end g_k is the gradient of the client's loss."""

    def linear() -> nn.Module:
        return nn.Linear(FEATURES, CLASSES)

    def fed() -> Federation:
        return federation([30, 25, 35, 28], build=linear, training=local(epochs=30, batch_size=40, lr=0.5))

    dyn: Any = run(algorithm("feddyn", alpha=0.1), fed(), 30)
    avg: Any = run(algorithm("fedavg", weighting="uniform"), fed(), 30)
    at_dyn, at_avg = (gradients(fed(), state.params) for state in (dyn, avg))
    assert at_dyn.mean(0).norm() < 1e-3 < 0.01 < at_avg.mean(0).norm() < at_dyn.norm(dim=1).mean()
    store = fed().row_store("device", len(dyn.h))
    for i, ref in dyn.g_k.items():
        torch.testing.assert_close(store.get(ref), at_dyn[i], rtol=0, atol=1e-3)


@pytest.mark.parametrize("build", BUILDS)
def test_clients_send_a_model_and_the_server_keeps_h(build: Any) -> None:
    fed = federation(EQUAL, build=build)
    run(algorithm("feddyn"), fed, 2)
    metrics, size = fed.collect(), fed.family.size
    for way in ("comm/download_mb", "comm/upload_mb"):
        assert metrics[way] == pytest.approx(4 * size * 4 / 1e6)
    assert metrics["cost/server_cache_mb"] == pytest.approx(fed.family.num_params * 4 / 1e6)


def test_alpha_must_be_above_0() -> None:
    with pytest.raises(Exception, match=r"alpha must be > 0, got 0.0"):
        algorithm("feddyn", alpha=0.0)
