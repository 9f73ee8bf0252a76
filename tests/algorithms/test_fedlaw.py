"""FedLAW: identities with other methods, and closed forms of its steps."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.core.model_family import FunctionalModel
from fedlab_runner.utils.errors import UserError
from tests.helpers.identities import BUILDS, LATE, OUT_OF_DOMAIN, close, trained
from tests.helpers.toy import algorithm, federation, run, server_data


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("off", [{"epochs": 0}, {"max_steps": 0}])
def test_fedlaw_without_steps_is_fedavg(build: Any, off: dict[str, int]) -> None:
    """Softmax of the logarithms of the size weights gives them back."""
    for fed in ({"build": build}, LATE | {"build": build}):
        close(trained("fedlaw", 4, fed, **off), trained("fedavg", 4, fed, late_policy="model"))


@pytest.mark.parametrize("build", BUILDS)
def test_fedlaw_is_its_optimisation_written_out(build: Any) -> None:
    """Four epochs of two minibatches, the rate halved after two, batch norm in training mode; its statistics are
    averaged by lambda.
    """
    settings: dict[str, Any] = {"lr": 0.05, "epochs": 4, "batch_size": 20, "lr_decay": 0.5, "lr_decay_epochs": 2}
    fed = federation((4, 8, 20), build=build, server=server_data(40))
    x, p = fed.family.init(0), fed.family.num_params
    fed.begin(0, 1.0)
    cohort = fed.start_cohort((x,))
    y = cohort.train(x)
    sizes = cohort.num_examples.double() / 32
    buffers = sizes @ y[:, p:]
    a, b = sizes.log().requires_grad_(), torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([a, b], lr=0.05, betas=(0.5, 0.999))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    fed.family.mode(True)
    for t, batch in enumerate(server_batches(fed, 4, 20)):
        model = FunctionalModel(fed.family, b.exp() * (a.softmax(0) @ y[:, :p]), buffers)
        optimizer.zero_grad()
        fed.family.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if t % 2:
            schedule.step()
    with torch.no_grad():
        expected = torch.cat([b.exp() * (a.softmax(0) @ y[:, :p]), a.softmax(0) @ y[:, p:]])
    other = federation((4, 8, 20), build=build, server=server_data(40))
    close(run(algorithm("fedlaw", **settings), other, 1).params, expected)
    metrics = other.collect()
    assert metrics["algorithm/gamma"] == pytest.approx(b.exp().item())
    assert metrics["algorithm/lambda_max"] == pytest.approx(a.softmax(0).max().item())
    assert abs(metrics["algorithm/gamma"] - 1) > 0.01


def test_fedlaw_lowers_the_loss_on_the_servers_examples() -> None:
    fed = federation((4, 8, 20), server=server_data(60))
    assert fed.server_data is not None
    losses = []
    for epochs in (0, 20):
        w = trained("fedlaw", 1, {"sizes": (4, 8, 20), "server": server_data(60)}, epochs=epochs)
        logits = fed.family.predict(w, fed.server_data.inputs)
        losses.append(float(F.cross_entropy(logits, fed.server_data.targets)))
    assert losses[1] < losses[0]


def test_the_weights_of_fedlaw_sum_to_one() -> None:
    """Two clients: the smallest and the largest weight are all."""
    fed = federation((8, 30))
    run(algorithm("fedlaw", lr=0.3), fed, 1)
    metrics = fed.collect()
    assert metrics["algorithm/lambda_min"] + metrics["algorithm/lambda_max"] == pytest.approx(1, abs=1e-12)
    assert metrics["algorithm/lambda_min"] != pytest.approx(8 / 38, abs=0.01)


def test_fedlaw_needs_labelled_examples_of_the_clients_classes() -> None:
    message = r"^algorithm=fedlaw trains on the clients' own classes: use server_data=in_domain$"
    with pytest.raises(UserError, match=message):
        algorithm("fedlaw").check(federation(server=OUT_OF_DOMAIN))
