"""FedBE: identities with other methods, and closed forms of its steps."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms import fedbe
from fedlab_runner.algorithms.shared.averaging import LATE_POLICIES
from fedlab_runner.algorithms.shared.server_batches import server_batches
from tests.helpers.identities import BUILDS, LATE, OUT_OF_DOMAIN, close, trained
from tests.helpers.toy import algorithm, federation, mlp, normed, server_data


@pytest.mark.parametrize("server", [None, OUT_OF_DOMAIN], ids=["in", "out"])
@pytest.mark.parametrize("off", [{"epochs": 0}, {"max_steps": 0}])
def test_fedbe_without_steps_is_fedavg(server: Any, off: dict[str, int]) -> None:
    for policy in LATE_POLICIES:
        mine = trained("fedbe", 4, LATE | {"server": server}, late_policy=policy, **off)
        close(mine, trained("fedavg", 4, LATE, late_policy=policy))


@pytest.mark.parametrize("build", BUILDS)
def test_fedbe_of_one_teacher_that_is_not_sharpened_changes_nothing(build: Any) -> None:
    """In evaluation mode: with batch norm, the student's probabilities are not the teacher's."""
    alone = {"num_samples": 0, "temperature": 1.0, "weight_decay": 0.0}
    fed = {"sizes": [12], "build": build}
    same = torch.allclose(trained("fedbe", 2, fed, **alone), trained("fedavg", 2, fed), rtol=0, atol=1e-10)
    assert same == (build is mlp)
    assert not torch.allclose(trained("fedbe", 2, fed, **(alone | {"temperature": 0.5})), trained("fedavg", 2, fed))


@pytest.mark.parametrize(("swa_start", "averaged"), [(2, (2, 4, 6)), (6, (6,)), (7, (6,))])
def test_fedbe_is_distillation_written_out(swa_start: int, averaged: tuple[int, ...]) -> None:
    """Teachers are the clients and their mean; six steps, of which every second model from a step on is averaged; the
    last counts where training ends before.
    """
    settings: dict[str, Any] = {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.01, "epochs": 3, "batch_size": 20}
    settings |= {"num_samples": 0, "swa_start": swa_start, "swa_every": 2}
    fed = federation((8, 20), server=server_data(40))
    x = fed.family.init(0)
    fed.begin(0, 1.0)
    cohort = fed.start_cohort((x,))
    y = cohort.train(x)
    mean = cohort.num_examples.double() @ y / 28
    student = mean.clone().requires_grad_()
    optimizer = torch.optim.SGD([student], lr=0.05, momentum=0.8, weight_decay=0.01)
    models = []
    for batch in server_batches(fed, 3, 20):
        teachers = torch.stack([fed.family.evaluate(w, w[:0], batch.inputs).softmax(-1) for w in (*y, mean)]).mean(0)
        targets = teachers.square() / teachers.square().sum(-1, keepdim=True)
        optimizer.zero_grad()
        logits = fed.family.forward(fed.family.views(student), batch.inputs)
        F.cross_entropy(logits, targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        models.append(student.detach().clone())
    expected = torch.stack([models[step - 1] for step in averaged]).mean(0)
    close(trained("fedbe", 1, {"sizes": (8, 20), "server": server_data(40)}, **settings), expected)


@pytest.mark.parametrize("temperature", [1e-3, 1e-300])
def test_the_sharpest_teachers_name_one_class(temperature: float) -> None:
    """Where p^(1 / temperature) is 0 in any number type."""
    settings: dict[str, Any] = {"num_samples": 0, "weight_decay": 0.0, "temperature": temperature, "lr": 0.05}
    limit = trained("fedbe", 1, LATE, **(settings | {"temperature": 1e-2}))
    found = trained("fedbe", 1, LATE, **settings)
    assert found.isfinite().all() and float((found - limit).abs().max()) < 0.1


def samples(y: Tensor, x: Tensor, mean: Tensor, build: Any = mlp, **overrides: Any) -> Tensor:
    built: Any = algorithm("fedbe", **overrides)
    family = federation(build=build).family
    return torch.stack([*built._samples(family, x, y, mean, np.random.default_rng(0))])


def test_gaussian_samples_have_the_mean_and_deviation_of_directions() -> None:
    """By tensor: the mean length times the mean and the deviation of unit changes; statistics are the mean model's."""
    family = federation(build=normed).family
    x, mean, p = family.init(0), family.init(9) + 0.5, family.num_params
    y = torch.stack([family.init(seed) for seed in range(1, 5)])
    y[0] = x  # a client that has not moved has no direction
    drawn = samples(y, x, mean, normed, num_samples=4000, noise=2.0)
    for name, part in family.views(torch.arange(p)).items():
        delta = (y - x)[:, part.flatten()]
        length = delta.norm(dim=1, keepdim=True)
        unit = torch.where(length > 0, delta / length, 0.0)
        deviation = (unit.square().mean(0) - unit.mean(0) ** 2).clamp_min(1e-5).sqrt() * length.mean()
        mine = drawn[:, part.flatten()]
        expected = x[part.flatten()] + length.mean() * unit.mean(0)
        assert ((mine.mean(0) - expected).abs() <= 4 * 2 * deviation / 4000**0.5 + 1e-12).all(), name
        torch.testing.assert_close(mine.std(0), 2 * deviation, rtol=0.06, atol=1e-12)
    assert (drawn[:, p:] == mean[p:]).all()
    close(samples(y, x, mean, normed, noise=0.0)[0, :p], samples(y, x, mean, normed, noise=0.0)[5, :p])


def test_clients_that_agree_vary_by_the_least_variance() -> None:
    family = federation().family
    one = torch.ones(3, family.size, dtype=torch.float64)
    centre, deviation = fedbe._directions(family, one)
    close(centre, one[0])
    for part in family.views(deviation).values():
        close(part, torch.full_like(part, part.numel() ** 0.5 * 1e-5**0.5))


def test_dirichlet_samples_are_means_of_the_clients() -> None:
    family = federation(build=normed).family
    x = family.init(0)
    y = torch.zeros(3, family.size, dtype=torch.float64)
    y[:, :3], y[:, -1] = torch.eye(3), 7.0
    drawn = samples(y, x, x, normed, sampler="dirichlet", num_samples=3000, alpha=2.0)
    close(drawn[:, :3].sum(1), torch.ones(3000, dtype=torch.float64))
    close(drawn[:, -1], torch.full((3000,), 7.0, dtype=torch.float64))
    assert drawn.min() >= 0 and len(drawn[:, :3].unique(dim=0)) == 3000
    torch.testing.assert_close(drawn[:, :3].mean(0), torch.full((3,), 1 / 3, dtype=torch.float64), rtol=0, atol=0.02)
    variance = torch.full((3,), 2 * 4 / (6**2 * 7), dtype=torch.float64)
    torch.testing.assert_close(drawn[:, :3].var(0), variance, rtol=0.1, atol=0)
    close(samples(y[:1], x, x, normed, sampler="dirichlet"), y[:1].expand(10, -1))
