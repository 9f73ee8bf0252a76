"""q-FedAvg: identities with FedAvg, closed forms of its step, and the losses that it reads."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedlab_runner.algorithms.qfedavg import QFedAvgUpload
from fedlab_runner.algorithms.shared.averaging import Params
from fedlab_runner.core.updates import Updates
from tests.helpers.identities import BUILDS, LATE, close
from tests.helpers.toy import RAGGED, algorithm, asked, federation, home, normed, run


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("weighting", ["uniform", "size"])
@pytest.mark.parametrize("lipschitz", [None, 3.0])
def test_with_q_0_it_is_fedavg(weighting: str, lipschitz: float | None, build: Any) -> None:
    """Late clients included; L does not matter then."""
    mine: Any = algorithm("qfedavg", q=0.0, lipschitz=lipschitz, weighting=weighting)
    close(
        run(mine, federation(**LATE, build=build), 6),
        run(algorithm("fedavg", weighting=weighting), federation(**LATE, build=build), 6),
    )


def test_one_client_steps_by_its_change_over_what_its_slope_adds() -> None:
    """x + d / (1 + q L |d|^2 / F): the power of F cancels."""
    fed, method = federation([7]), algorithm("qfedavg", q=2.0, lipschitz=4.0)
    state: Any = method.init(fed)
    fed.begin(0, 1.0)
    loss = asked(fed, [0]).losses(state.params)
    d = asked(fed, [0]).train(state.params)[0] - state.params
    after: Any = run(method, fed, 1, state=state)
    close(after.params - state.params, d / (1 + 2 * 4 * d.square().sum() / loss[0]), atol=1e-9)


def test_a_larger_q_moves_the_server_towards_the_client_with_the_larger_loss() -> None:
    cosines = []
    for q in (0.0, 1.0, 5.0, 20.0):
        fed, method = federation([6, 40]), algorithm("qfedavg", q=q)
        state: Any = method.init(fed)
        fed.begin(0, 1.0)
        worst = int(asked(fed, [0, 1]).losses(state.params).argmax())
        change = asked(fed, [0, 1]).train(state.params)[worst] - state.params
        after: Any = run(method, fed, 1, state=state)
        cosines.append(float(F.cosine_similarity(after.params - state.params, change, dim=0)))
    assert cosines == sorted(cosines) and cosines[-1] > 0.98 and cosines[0] < cosines[-1] - 1e-3


@pytest.mark.parametrize("kept", ["none", "norm"])
def test_a_clients_loss_is_that_of_the_model_it_starts_from(kept: str) -> None:
    """In evaluation mode, over all its examples, with its own values where it has some."""
    fed = federation(RAGGED, build=normed, home=home(kept))
    method: Any = algorithm("qfedavg")
    state = run(method, fed, 2)
    fed.begin(2, 1.0)
    cohort = asked(fed, [5, 0, 7])
    found = cohort.losses(state.params)
    p, family = fed.family.num_params, fed.family
    for k, x in enumerate(cohort.starts(state.params)):
        rows = fed.client_data.members(int(cohort.client_ids[k]))
        inputs, targets = fed.client_data.inputs[rows], fed.client_data.targets[rows]
        loss = F.cross_entropy(family.evaluate(x[:p], x[p:], inputs), targets)
        assert float(found[k]) == pytest.approx(float(loss), rel=1e-12)
    fed.begin(2, 0.0)  # h is F^q then, of values from before the round
    close(method.client_update(state, asked(fed, [5, 0, 7])).h, found**method.q, atol=1e-8)


def test_a_loss_of_0_and_a_learning_rate_of_0_stay_finite() -> None:
    fed: Any = federation()
    method: Any = algorithm("qfedavg", q=0.5)
    x = method.init(fed).params
    fed.begin(0, 0.0)
    close(method.round(method.init(fed), fed).params, x)
    rows = torch.ones(2, len(x), dtype=torch.float64)
    ones = torch.tensor([1, 1])
    nothing = QFedAvgUpload(0 * rows, rows[:, :0], torch.zeros(2, dtype=torch.float64))
    close(method.server_step(method.init(fed), Updates(nothing, ones, ones, 0 * ones), fed).params, x)
    fed.begin(0, 1.0)
    sure = x.clone()  # of the label of client 0's one example
    fed.family.views(sure)["2.bias"][fed.client_data.targets[0]] = 1e4
    assert asked(fed, [0]).losses(sure) == 0 and torch.isfinite(method.client_update(Params(sure), asked(fed, [0])).h)


def test_the_pass_for_the_loss_is_counted() -> None:
    gflops, sent = [], []
    for name in ("fedavg", "qfedavg"):
        fed = federation()
        run(algorithm(name), fed, 1)
        gflops.append(fed.collect()["cost/client_gflops"])
        sent.append(fed.collect()["comm/upload_mb"])
    forward = fed.family.flops(fed.client_data.inputs[:1]).forward
    assert gflops[1] - gflops[0] == pytest.approx(sum(RAGGED) * forward / 1e9)
    assert sent[1] - sent[0] == pytest.approx(len(RAGGED) * 4 / 1e6)  # h of each client


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"q": -1.0}, "q must be >= 0"),
        ({"lipschitz": 0.0}, "lipschitz must be > 0"),
        ({"weighting": "loss"}, "weighting must be one of size, uniform"),
    ],
)
def test_what_is_out_of_range_is_refused(keys: dict[str, Any], fault: str) -> None:
    with pytest.raises(Exception, match=fault):
        algorithm("qfedavg", **keys)
