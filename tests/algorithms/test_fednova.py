"""FedNova: identities with other methods, and closed forms of its steps."""

from typing import Any

import pytest
import torch

from fedlab_runner.core.optimizer import SGD, zero_slots
from fedlab_runner.utils.errors import UserError
from tests.helpers.identities import BUILDS, close, trained
from tests.helpers.toy import algorithm, federation, local, normed


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_fednova_with_equal_steps_is_fedavg(build: Any, momentum: float, weighting: str) -> None:
    """The clients' sizes differ, their number of steps does not."""
    fed = {"build": build, "training": local(epochs=None, steps=5, momentum=momentum)}
    close(trained("fednova", 3, fed, weighting=weighting), trained("fedavg", 3, fed, weighting=weighting))
    ragged = {"build": build, "training": local(momentum=momentum)}
    assert not torch.allclose(trained("fednova", 1, ragged), trained("fedavg", 1, ragged))


def test_fednova_with_equal_steps_and_a_proximal_term_goes_as_far_as_its_steps() -> None:
    """tau_eff is Q then, not a: FedProx's change times Q / a."""
    fed = {"training": local(epochs=None, steps=5)}
    x = federation().family.init(0)
    a = (1 - (1 - 0.1 * 0.7) ** 5) / (0.1 * 0.7)
    close(trained("fednova", 1, fed, mu=0.7) - x, 5 / a * (trained("fedprox", 1, fed, mu=0.7) - x))


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_the_work_of_steps_has_closed_forms(steps: int) -> None:
    rho, eta_mu = 0.9, 0.05
    plain, heavy = SGD(0.0, False, 0.0), SGD(rho, False, 0.0)
    assert plain.distances(steps)[-1] == steps
    expected = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert heavy.distances(steps)[-1] == pytest.approx(expected, rel=1e-12)
    assert plain.distances(steps, eta_mu)[-1] == pytest.approx((1 - (1 - eta_mu) ** steps) / eta_mu, rel=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_the_work_of_steps_is_the_distance_along_gradients_of_one(nesterov: bool, mu: float) -> None:
    """Measured with the optimiser that the clients have."""
    lr, optimizer = 0.05, SGD(0.8, nesterov, 0.0)
    w = torch.zeros(1, dtype=torch.float64)
    slots, distances = zero_slots(optimizer, w), [0.0]
    for t in range(9):
        optimizer.step(w, torch.ones_like(w) + mu * w, slots, lr, t)
        distances.append(float(-w / lr))
    assert optimizer.distances(9, lr * mu) == pytest.approx(distances, rel=1e-12)


def test_fednova_is_its_update_written_out() -> None:
    """Clients of 1, 2 and 5 steps; the statistics of batch norm are averaged as they are."""
    sizes, fed = (8, 16, 40), federation((8, 16, 40), build=normed, training=local(epochs=1))
    x, p = fed.family.init(0), fed.family.num_params
    fed.begin(0, 1.0)
    cohort = fed.start_cohort((x,))
    delta = cohort.train(x) - x
    weights = torch.tensor(sizes, dtype=torch.float64)[cohort.ids] / sum(sizes)
    expected = x + (weights.unsqueeze(1) * delta).sum(0)
    tau = cohort.num_steps.double()
    expected[:p] = x[:p] + (weights * tau).sum() * (weights / tau) @ delta[:, :p]
    close(trained("fednova", 1, {"sizes": sizes, "build": normed, "training": local(epochs=1)}), expected)


def test_fednova_refuses_adam() -> None:
    fed = federation(training=local(optimizer="adam"))
    for call in (algorithm("fednova").check, algorithm("fednova").init):
        with pytest.raises(UserError, match=r"^algorithm=fednova normalises steps of SGD: use local=sgd, got adam$"):
            call(fed)
