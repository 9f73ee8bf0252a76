"""Identities and closed forms of the synchronous baselines: 7.1, 7.3 to 7.5 and 7.20 of `algorithms.md`, edge cases of
its section 6, and what they refuse.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from toy import EQUAL, RAGGED, algorithm, federation, local, mlp, normed, run

from fedlab_runner.algorithms.fednova import accumulated
from fedlab_runner.averaging import Update
from fedlab_runner.errors import UserError
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.executors.work import Executor
from fedlab_runner.federation import Arrivals
from fedlab_runner.optimizer import SGD, zero_slots
from fedlab_runner.task import Batch, Model

EXECUTORS: list[Executor] = [Loop(compile=False), Vectorized(chunk_size=3, compile=False)]
BUILDS = [mlp, normed]


def close(a: Tensor, b: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def params(name: str, rounds: int = 3, fed: dict[str, Any] | None = None, **overrides: Any) -> Tensor:
    """The server's model after some rounds, not what is evaluated."""
    state: Any = run(algorithm(name, **overrides), federation(**(fed or {})), rounds)
    result: Tensor = state.params
    return result


def arrivals(rows: Tensor, num_examples: list[int] | None = None) -> Arrivals[Any]:
    n = len(rows)
    sizes = torch.tensor(num_examples or [1] * n)
    return Arrivals(Update(rows), torch.arange(n), sizes, torch.zeros(n, dtype=torch.int64))


# FedNova.


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_7_3_fednova_with_equal_steps_is_fedavg(build: Any, momentum: float, weighting: str) -> None:
    """The clients' sizes differ, their number of steps does not."""
    fed = {"build": build, "training": local(epochs=None, steps=5, momentum=momentum)}
    close(params("fednova", 3, fed, weighting=weighting), params("fedavg", 3, fed, weighting=weighting))
    ragged = {"build": build, "training": local(momentum=momentum)}
    assert not torch.allclose(params("fednova", 1, ragged), params("fedavg", 1, ragged))


def test_fednova_with_equal_steps_and_a_proximal_term_goes_as_far_as_its_steps() -> None:
    """tau_eff is Q then, not a: FedProx's change times Q / a."""
    fed = {"training": local(epochs=None, steps=5)}
    x = federation().task.init(0)
    a = (1 - (1 - 0.1 * 0.7) ** 5) / (0.1 * 0.7)
    close(params("fednova", 1, fed, mu=0.7) - x, 5 / a * (params("fedprox", 1, fed, mu=0.7) - x))


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_7_3_the_work_of_steps_has_closed_forms(steps: int) -> None:
    rho, eta_mu = 0.9, 0.05
    plain, heavy = SGD(0.0, False, 0.0), SGD(rho, False, 0.0)
    assert accumulated(plain, 0.0, steps)[-1] == steps
    expected = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert accumulated(heavy, 0.0, steps)[-1] == pytest.approx(expected, rel=1e-12)
    assert accumulated(plain, eta_mu, steps)[-1] == pytest.approx((1 - (1 - eta_mu) ** steps) / eta_mu, rel=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_7_3_the_work_of_steps_is_the_distance_along_gradients_of_one(nesterov: bool, mu: float) -> None:
    """Measured with the optimiser that the clients have."""
    lr, optimizer = 0.05, SGD(0.8, nesterov, 0.0)
    w = torch.zeros(1, dtype=torch.float64)
    slots, distances = zero_slots(optimizer, w), [0.0]
    for t in range(9):
        optimizer.step(w, torch.ones_like(w) + mu * w, slots, lr, t)
        distances.append(float(-w / lr))
    assert accumulated(optimizer, lr * mu, 9) == pytest.approx(distances, rel=1e-12)


def test_fednova_is_equation_6_written_out() -> None:
    """Clients of 1, 2 and 5 steps; the statistics of batch norm are averaged as they are."""
    sizes, fed = (8, 16, 40), federation((8, 16, 40), build=normed, training=local(epochs=1))
    x, p = fed.task.init(0), fed.task.num_params
    fed.begin(0, 1.0)
    cohort = fed.dispatch((x,))
    delta = cohort.train(x) - x
    weights = torch.tensor(sizes, dtype=torch.float64)[cohort.ids] / sum(sizes)
    expected = x + (weights.unsqueeze(1) * delta).sum(0)
    tau = cohort.num_steps.double()
    expected[:p] = x[:p] + (weights * tau).sum() * (weights / tau) @ delta[:, :p]
    close(params("fednova", 1, {"sizes": sizes, "build": normed, "training": local(epochs=1)}), expected)


def test_fednova_refuses_adam() -> None:
    fed = federation(training=local(optimizer="adam"))
    for call in (algorithm("fednova").check, algorithm("fednova").init):
        with pytest.raises(UserError, match=r"^algorithm=fednova normalises steps of SGD: use local=sgd, got adam$"):
            call(fed)


# FedExP.


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_7_4_fedexp_of_changes_that_agree_is_fedavg(eps: float) -> None:
    built: Any = algorithm("fedexp", eps=eps)
    fed = federation()
    state, delta = built.init(fed), torch.linspace(-1, 1, fed.task.size, dtype=torch.float64)
    for rows in (delta.expand(4, -1), delta.unsqueeze(0)):
        fed.begin(0, 1.0)
        close(built.server_step(state, arrivals(rows), fed).params, state.params + delta)
        assert fed.collect()["algorithm/server_lr"] == 1


@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_7_4_fedexp_of_orthogonal_changes_steps_half_as_far_as_there_are_clients(m: int) -> None:
    built: Any = algorithm("fedexp", eps=0.0, weighting="uniform")
    fed = federation()
    state, rows = built.init(fed), 3 * torch.eye(m, fed.task.size, dtype=torch.float64)
    after = built.server_step(state, arrivals(rows, list(range(1, m + 1))), fed)
    assert fed.collect()["algorithm/server_lr"] == pytest.approx(max(1, m / 2))
    close(after.params, state.params + max(1, m / 2) * rows.mean(0))


def test_fedexp_is_equation_8_written_out() -> None:
    """Sizes as weights, eps, and batch norm statistics left out of the norms and of the extrapolation."""
    fed = federation(build=normed)
    built: Any = algorithm("fedexp", eps=0.5)
    p = fed.task.num_params
    state, rows = built.init(fed), torch.zeros(4, fed.task.size, dtype=torch.float64)
    rows[:, :4], rows[:, p:] = 4 * torch.eye(4, dtype=torch.float64), 7.0
    after = built.server_step(state, arrivals(rows, [1, 2, 2, 3]), fed)
    server_lr = 16 / (2 * (16 * (1 + 4 + 4 + 9) / 64 + 0.5))  # mean change: 4 (1, 2, 2, 3) / 8
    assert server_lr > 1.5
    assert fed.collect()["algorithm/server_lr"] == pytest.approx(server_lr)
    change = after.params - state.params
    close(change[:4], server_lr * torch.tensor([0.5, 1.0, 1.0, 1.5], dtype=torch.float64))
    close(change[p:], torch.full_like(change[p:], 7.0))
    built.server_step(state, arrivals(rows[:2], [1, 3]), fed)  # 16 / (2 (10 + 0.5)) is less than 1
    assert fed.collect()["algorithm/server_lr"] == 1


def test_fedexp_of_changes_that_cancel_stays_finite() -> None:
    fed = federation()
    rows = torch.ones(2, fed.task.size, dtype=torch.float64) * torch.tensor([[1.0], [-1.0]])
    built: Any = algorithm("fedexp", eps=0.0)
    state = built.init(fed)
    assert torch.equal(built.server_step(state, arrivals(rows), fed).params, state.params)


def test_fedexp_evaluates_the_mean_of_the_last_two_models() -> None:
    one, two = (run(algorithm("fedexp"), federation(), rounds) for rounds in (1, 2))
    assert torch.equal(two.previous, one.params)
    close(algorithm("fedexp").models(two), (one.params + two.params) / 2)
    plain = algorithm("fedexp", eval_avg_last2=False)
    close(plain.models(run(plain, federation(), 2)), two.params)


# FedSAM.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("build", BUILDS)
def test_7_1_fedsam_without_ascent_is_fedavg_bit_for_bit(executor: Executor, build: Any) -> None:
    fed = {"executor": executor, "build": build, "training": local(momentum=0.5, clip_norm=1.0)}
    assert torch.equal(params("fedsam", 3, fed, rho=0.0), params("fedavg", 3, fed))
    assert not torch.allclose(params("fedsam", 3, fed, rho=0.1), params("fedavg", 3, fed))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedsam_is_its_step_written_out(executor: Executor) -> None:
    """One client, two full-batch steps: the statistics are those of the first pass, made of the parameters w."""
    fed = federation([8], build=normed, executor=executor, training=local(epochs=2))
    p, w = fed.task.num_params, fed.task.init(0)
    inputs, targets = fed.population.inputs, fed.population.targets
    mask = torch.ones(8, dtype=torch.float64)

    def gradient(params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        fed.task.mode(True)
        leaf = params.detach().requires_grad_()
        model = Model(fed.task, leaf, buffers)
        (g,) = torch.autograd.grad(fed.task.loss(model, Batch(inputs, targets, mask)), leaf)
        return g, model.buffers

    x, buffers = w[:p], w[p:]
    for _ in range(2):
        g, updated = gradient(x, buffers)
        ascended, _ = gradient(x + 0.3 * g / g.norm(), buffers)
        x, buffers = x - 0.1 * ascended, updated
    fed.begin(0, 1.0)
    close(run(algorithm("fedsam", rho=0.3), fed, 1).params, torch.cat([x, buffers]), atol=1e-9)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedsam_stands_still_where_the_gradient_is_zero(executor: Executor) -> None:
    """A single class and weights that are certain of it."""
    fed = federation([8], executor=executor)
    fed.population.targets.zero_()
    x = fed.task.init(0)
    views = fed.task.views(x)
    views["2.bias"].copy_(torch.tensor([1e4, -1e4, -1e4]))
    built: Any = algorithm("fedsam")
    assert torch.equal(run(built, fed, 1, state=built.init(fed)._replace(params=x)).params, x)


# All of them.


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("fednova", {"mu": -1.0}, "mu must be >= 0, got -1.0"),
        ("fednova", {"weighting": "length"}, "weighting must be one of size, uniform, got length"),
        ("fedexp", {"eps": -1e-3}, "eps must be >= 0, got -0.001"),
        ("fedsam", {"rho": -0.1}, "rho must be >= 0, got -0.1"),
        ("fedsam", {"late_policy": "never"}, "late_policy must be one of delta, model, discard, got never"),
    ],
)
def test_bad_fields_name_themselves(name: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as error:
        algorithm(name, **overrides)
    assert isinstance(error.value.__cause__ or error.value, ValueError)


@pytest.mark.parametrize(("name", "more"), [("fednova", 1), ("fedexp", 0), ("fedsam", 0)])
@pytest.mark.parametrize("build", BUILDS)
def test_7_20_payloads_are_those_of_the_table(name: str, more: int, build: Any) -> None:
    """Section 5: a model each way, and what a method sends on top of it."""
    fed = federation(EQUAL, build=build)
    run(algorithm(name), fed, 1)
    metrics, size = fed.collect(), fed.task.size
    assert metrics["comm/download_mb"] == pytest.approx(len(EQUAL) * size * 4 / 1e6)
    assert metrics["comm/upload_mb"] == pytest.approx(len(EQUAL) * (size + more) * 4 / 1e6)


@pytest.mark.parametrize("name", ["fednova", "fedexp", "fedsam"])
@pytest.mark.parametrize("build", BUILDS)
def test_a_single_participant_is_fedavg(name: str, build: Any) -> None:
    """FedExP's factor is 1, FedNova's normalisation cancels; FedSAM needs rho = 0."""
    overrides = {"rho": 0.0} if name == "fedsam" else {}
    fed = {"sizes": [20], "build": build}
    close(params(name, 3, fed, **overrides), params("fedavg", 3, fed))


@pytest.mark.parametrize("name", ["fednova", "fedexp", "fedsam"])
def test_a_round_without_arrivals_changes_nothing(name: str) -> None:
    fed = {"sizes": RAGGED, "cohort": 2, "std": 1e6}
    assert torch.equal(params(name, 3, fed), federation().task.init(0))
