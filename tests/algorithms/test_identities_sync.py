"""Identities and closed forms of the synchronous baselines: 7.1, 7.3 to 7.5 and 7.20 of `algorithms.md`, edge cases of
its section 6, and what they refuse.
"""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.algorithms import fedbe
from fedlab_runner.algorithms.fednova import accumulated
from fedlab_runner.algorithms.shared.averaging import LATE_POLICIES, Update
from fedlab_runner.algorithms.shared.server_training import server_batches
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.optimizer import SGD, zero_slots
from fedlab_runner.core.rng import Purpose, generator, generators
from fedlab_runner.core.updates import Updates
from fedlab_runner.core.work import Executor
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import CLASSES, EQUAL, RAGGED, algorithm, federation, local, mlp, normed, run, server_data

EXECUTORS: list[Executor] = [Loop(compile=False), Vectorized(chunk_size=3, compile=False)]
BUILDS = [mlp, normed]
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 2.0}
OUT_OF_DOMAIN = server_data(60, num_classes=4)


def close(a: Tensor, b: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def params(name: str, rounds: int = 3, fed: dict[str, Any] | None = None, **overrides: Any) -> Tensor:
    """The server's model after some rounds, not what is evaluated."""
    state: Any = run(algorithm(name, **overrides), federation(**(fed or {})), rounds)
    result: Tensor = state.params
    return result


def arrivals(rows: Tensor, num_examples: list[int] | None = None, statistics: Tensor | None = None) -> Updates[Any]:
    n = len(rows)
    sizes = torch.tensor(num_examples or [1] * n)
    return Updates(
        Update(rows, rows[:, :0] if statistics is None else statistics),
        torch.arange(n),
        sizes,
        torch.zeros(n, dtype=torch.int64),
    )


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
    x = federation().family.init(0)
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
    state, delta = built.init(fed), torch.linspace(-1, 1, fed.family.size, dtype=torch.float64)
    for rows in (delta.expand(4, -1), delta.unsqueeze(0)):
        fed.begin(0, 1.0)
        close(built.server_step(state, arrivals(rows), fed).params, state.params + delta)
        assert fed.collect()["algorithm/server_lr"] == 1


@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_7_4_fedexp_of_orthogonal_changes_steps_half_as_far_as_there_are_clients(m: int) -> None:
    built: Any = algorithm("fedexp", eps=0.0, weighting="uniform")
    fed = federation()
    state, rows = built.init(fed), 3 * torch.eye(m, fed.family.size, dtype=torch.float64)
    after = built.server_step(state, arrivals(rows, list(range(1, m + 1))), fed)
    assert fed.collect()["algorithm/server_lr"] == pytest.approx(max(1, m / 2))
    close(after.params, state.params + max(1, m / 2) * rows.mean(0))


def test_fedexp_is_its_step_written_out() -> None:
    """Sizes as weights, eps, and batch norm statistics left out of the norms and of the extrapolation."""
    fed = federation(build=normed)
    built: Any = algorithm("fedexp", eps=0.5)
    p = fed.family.num_params
    state, rows = built.init(fed), torch.zeros(4, p, dtype=torch.float64)
    rows[:, :4] = 4 * torch.eye(4, dtype=torch.float64)
    statistics = torch.full((4, fed.family.num_buffers), 7.0, dtype=torch.float64)
    after = built.server_step(state, arrivals(rows, [1, 2, 2, 3], statistics), fed)
    server_lr = 16 / (2 * (16 * (1 + 4 + 4 + 9) / 64 + 0.5))  # mean change: 4 (1, 2, 2, 3) / 8
    assert server_lr > 1.5
    assert fed.collect()["algorithm/server_lr"] == pytest.approx(server_lr)
    change = after.params - state.params
    close(change[:4], server_lr * torch.tensor([0.5, 1.0, 1.0, 1.5], dtype=torch.float64))
    close(after.params[p:], statistics[0])
    built.server_step(state, arrivals(rows[:2], [1, 3], statistics[:2]), fed)  # 16 / (2 (10 + 0.5)) is less than 1
    assert fed.collect()["algorithm/server_lr"] == 1


def test_fedexp_of_changes_that_cancel_stays_finite() -> None:
    fed = federation()
    rows = torch.ones(2, fed.family.size, dtype=torch.float64) * torch.tensor([[1.0], [-1.0]])
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
    p, w = fed.family.num_params, fed.family.init(0)
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    mask = torch.ones(8, dtype=torch.float64)

    def gradient(params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        fed.family.mode(True)
        leaf = params.detach().requires_grad_()
        model = FunctionalModel(fed.family, leaf, buffers)
        (g,) = torch.autograd.grad(fed.family.loss(model, Batch(inputs, targets, mask)), leaf)
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
    fed.client_data.targets.zero_()
    x = fed.family.init(0)
    views = fed.family.views(x)
    views["2.bias"].copy_(torch.tensor([1e4, -1e4, -1e4]))
    built: Any = algorithm("fedsam")
    assert torch.equal(run(built, fed, 1, state=built.init(fed)._replace(params=x)).params, x)


# FedLAW.


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("off", [{"epochs": 0}, {"max_steps": 0}])
def test_7_5_fedlaw_without_steps_is_fedavg(build: Any, off: dict[str, int]) -> None:
    """Softmax of the logarithms of the size weights gives them back."""
    for fed in ({"build": build}, LATE | {"build": build}):
        close(params("fedlaw", 4, fed, **off), params("fedavg", 4, fed, late_policy="model"))


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
        w = params("fedlaw", 1, {"sizes": (4, 8, 20), "server": server_data(60)}, epochs=epochs)
        logits = fed.family.predict(w, fed.server_data.inputs)
        losses.append(float(F.cross_entropy(logits, fed.server_data.targets)))
    assert losses[1] < losses[0]


def test_7_5_the_weights_of_fedlaw_sum_to_one() -> None:
    """Two clients: the smallest and the largest weight are all."""
    fed = federation((8, 30))
    run(algorithm("fedlaw", lr=0.3), fed, 1)
    metrics = fed.collect()
    assert metrics["algorithm/lambda_min"] + metrics["algorithm/lambda_max"] == pytest.approx(1, abs=1e-12)
    assert metrics["algorithm/lambda_min"] != pytest.approx(8 / 38, abs=0.01)


# FedBE.


@pytest.mark.parametrize("server", [None, OUT_OF_DOMAIN], ids=["in", "out"])
@pytest.mark.parametrize("off", [{"epochs": 0}, {"max_steps": 0}])
def test_7_5_fedbe_without_steps_is_fedavg(server: Any, off: dict[str, int]) -> None:
    for policy in LATE_POLICIES:
        mine = params("fedbe", 4, LATE | {"server": server}, late_policy=policy, **off)
        close(mine, params("fedavg", 4, LATE, late_policy=policy))


@pytest.mark.parametrize("build", BUILDS)
def test_fedbe_of_one_teacher_that_is_not_sharpened_changes_nothing(build: Any) -> None:
    """In evaluation mode: with batch norm, the student's probabilities are not the teacher's."""
    alone = {"num_samples": 0, "temperature": 1.0, "weight_decay": 0.0}
    fed = {"sizes": [12], "build": build}
    same = torch.allclose(params("fedbe", 2, fed, **alone), params("fedavg", 2, fed), rtol=0, atol=1e-10)
    assert same == (build is mlp)
    assert not torch.allclose(params("fedbe", 2, fed, **(alone | {"temperature": 0.5})), params("fedavg", 2, fed))


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
    close(params("fedbe", 1, {"sizes": (8, 20), "server": server_data(40)}, **settings), expected)


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


# FedGEN.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("off", [{"alpha": 0.0, "beta": 0.0}, {"steps": 0}, {"gen_epochs": 0}])
def test_7_1_fedgen_without_regularisation_is_fedavg(executor: Executor, build: Any, off: dict[str, Any]) -> None:
    fed = {"executor": executor, "build": build}
    close(params("fedgen", 3, fed, **off), params("fedavg", 3, fed))


def test_fedgen_regularises_from_the_second_round_on() -> None:
    assert torch.equal(params("fedgen", 1), params("fedavg", 1))
    assert not torch.allclose(params("fedgen", 2), params("fedavg", 2))


def test_fedgen_regularises_the_first_epochs_only() -> None:
    """Of two epochs of three minibatches each."""
    none, one, both, more = (params("fedgen", 2, {"sizes": [20]}, gen_epochs=epochs) for epochs in (0, 1, 2, 20))
    assert not torch.allclose(none, one) and not torch.allclose(one, both) and torch.equal(both, more)


def generate(generator: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
    """A generator of the toy's size in evaluation mode: linear, batch norm, ReLU, linear."""
    sizes = (6 * 7, 6, 6, 6, 6 * 6, 6, 6, 6)  # of the layers in order, then running mean and variance
    w1, b1, scale, shift, w2, b2, mean, variance = torch.split(generator, sizes)
    hidden = F.linear(torch.cat([noise, torch.eye(CLASSES, dtype=torch.float64)[labels]], 1), w1.view(6, 7), b1)
    normal = (hidden - mean) / (variance + 1e-5).sqrt() * scale + shift
    return F.linear(normal.relu(), w2.view(6, 6), b2)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("size", [8, 5])
def test_fedgen_clients_minimise_the_loss_written_out(executor: Executor, size: int) -> None:
    """One client with a single step, on a whole or a partial minibatch of 8, in the second round."""
    kind: dict[str, Any] = {"sizes": [size], "executor": executor, "training": local(epochs=1)}
    fed, built = federation(**kind), algorithm("fedgen", alpha=3.0, beta=2.0, decay=0.5)
    state = run(built, fed, 1)
    rng = next(generators(0, Purpose.ALGORITHM, 1, np.array([0])))
    made_up = torch.from_numpy(rng.integers(CLASSES, size=5))
    noise = torch.from_numpy(rng.random((5 + 8, 4)))
    index = fed.client_data.plan(np.array([0]), fed.local, seed=0, round=1, drop_single=False).indices[0, 0, :size]
    inputs, targets = fed.client_data.inputs[index], fed.client_data.targets[index]
    w = state.params.clone().requires_grad_()
    named = fed.family.views(w)
    features = torch.tanh(F.linear(inputs, named["0.weight"], named["0.bias"]))
    logits, false, mine = (
        F.linear(z, named["2.weight"], named["2.bias"])
        for z in (
            features,
            generate(state.generator, noise[:5], made_up),
            generate(state.generator, noise[5 : 5 + size], targets),
        )
    )
    loss = F.cross_entropy(logits, targets) + 5 / 8 * 1.5 * F.cross_entropy(false, made_up)
    loss = loss + 1.0 * F.kl_div(logits.log_softmax(-1), mine.softmax(-1).detach(), reduction="batchmean")
    (g,) = torch.autograd.grad(loss, w)
    expected = (w - 0.1 * g).detach()
    fed.begin(1, 1.0)
    close(run(built, fed, 1, first=1, state=state).params, expected)


def test_fedgen_trains_its_generator_as_written_out() -> None:
    """Two rounds: Adam goes on, its rate falls; each client teaches by its share of a label's examples; nobody has an
    example of the last class.
    """
    kind: dict[str, Any] = {"sizes": (6, 10)}
    built: Any = algorithm("fedgen", lr=0.01, lr_decay=0.5, weight_decay=0.1, eta=2.0)
    fed = federation(**kind)
    fed.client_data.targets.clamp_(max=1)
    state = built.init(fed)
    module = nn.Sequential(nn.Linear(4 + CLASSES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6)).double()
    nn.utils.vector_to_parameters(state.generator[:-12].clone(), module.parameters())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.1)
    for round in range(2):
        fed.begin(round, 1.0)
        cohort = fed.start_cohort(built.broadcast(state))
        upload = built.client_update(state, cohort)
        assert upload.counts.sum(1).tolist() == cohort.num_examples.tolist()
        assert upload.counts[:, 2].tolist() == [0, 0]
        rng = generator(0, Purpose.SERVER_BATCHES, round)
        for _ in range(3):
            y = torch.from_numpy(rng.choice(np.array([0, 1]), 7))
            noise = torch.from_numpy(rng.random((7, 4)))
            z = module(torch.cat([noise, torch.eye(CLASSES, dtype=torch.float64)[y]], 1))
            loss = torch.zeros((), dtype=torch.float64)
            for model, counts in zip(upload.models, upload.counts, strict=True):
                named = fed.family.views(model)
                errors = F.cross_entropy(F.linear(z, named["2.weight"], named["2.bias"]), y, reduction="none")
                loss = loss + (counts[y] / upload.counts.sum(0)[y] * errors).mean()
            noises = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(2)
            distances = (z.unsqueeze(0) - z.unsqueeze(1)).abs().mean(2)
            loss = loss + 2.0 * torch.exp(-(noises * distances).mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = built.server_step(state, fed.collect_updates(cohort, upload, built.known), fed)
        optimizer.param_groups[0]["lr"] *= 0.5
        statistics = [module[1].running_mean, module[1].running_var]
        vector = torch.cat([nn.utils.parameters_to_vector(module.parameters()).detach(), *statistics])
        # the bias before batch norm has a gradient of rounding errors and of weight decay, and Adam makes steps of them
        close(state.generator, vector, atol=1e-7)
    assert state.steps == 6


def test_fedgens_generator_learns_what_the_clients_see_in_features() -> None:
    fed = federation()
    run(algorithm("fedgen", lr=0.01, hidden=32, steps=50), fed, 1)
    metrics = fed.collect()
    assert metrics["algorithm/teacher_loss_last"] < 0.3 * metrics["algorithm/teacher_loss_first"]


def test_fedgen_needs_a_linear_classifier() -> None:
    def convolutional() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, CLASSES, 1), nn.Flatten())

    with pytest.raises(UserError, match=r"^algorithm=fedgen needs a model that ends in a linear classifier"):
        algorithm("fedgen").check(federation(build=convolutional))


# All of them.


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("fednova", {"mu": -1.0}, "mu must be >= 0, got -1.0"),
        ("fednova", {"weighting": "length"}, "weighting must be one of size, uniform, got length"),
        ("fedexp", {"eps": -1e-3}, "eps must be >= 0, got -0.001"),
        ("fedsam", {"rho": -0.1}, "rho must be >= 0, got -0.1"),
        ("fedsam", {"late_policy": "never"}, "late_policy must be one of delta, model, discard, got never"),
        ("fedlaw", {"lr_decay": 1.5}, r"lr_decay must be in \(0, 1\], got 1.5"),
        ("fedlaw", {"lr_decay_epochs": 0}, "lr_decay_epochs must be >= 1, got 0"),
        ("fedlaw", {"epochs": -1}, "epochs must be >= 0, got -1"),
        ("fedgen", {"alpha": -1.0}, "alpha must be >= 0, got -1.0"),
        ("fedgen", {"decay": 0.0}, r"decay must be in \(0, 1\], got 0.0"),
        ("fedgen", {"batch_size": 1}, "batch_size must be >= 2, got 1"),
        ("fedgen", {"gen_batch_size": 0}, "gen_batch_size must be >= 1, got 0"),
        ("fedgen", {"lr": 0.0}, "lr must be > 0, got 0.0"),
        ("fedbe", {"sampler": "swag"}, "sampler must be one of gaussian, dirichlet, got swag"),
        ("fedbe", {"num_samples": -1}, "num_samples must be >= 0, got -1"),
        ("fedbe", {"alpha": 0.0}, "alpha must be > 0, got 0.0"),
        ("fedbe", {"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        ("fedbe", {"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ("fedbe", {"swa_every": 0}, "swa_every must be >= 1, got 0"),
    ],
)
def test_bad_fields_name_themselves(name: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as error:
        algorithm(name, **overrides)
    assert isinstance(error.value.__cause__ or error.value, ValueError)


GENERATOR = (4 + CLASSES) * 6 + 6 + 2 * 6 + 6 * 6 + 6 + 2 * 6  # with its batch norm statistics


@pytest.mark.parametrize(
    ("name", "down", "more"),
    [
        ("fednova", 0, 1),
        ("fedexp", 0, 0),
        ("fedsam", 0, 0),
        ("fedlaw", 0, 0),
        ("fedbe", 0, 0),
        ("fedgen", GENERATOR, CLASSES),
    ],
)
@pytest.mark.parametrize("build", BUILDS)
def test_7_20_payloads_are_those_of_the_table(name: str, down: int, more: int, build: Any) -> None:
    """Section 5: a model each way, and what a method sends on top of it."""
    fed = federation(EQUAL, build=build)
    run(algorithm(name), fed, 1)
    metrics, size = fed.collect(), fed.family.size
    assert metrics["comm/download_mb"] == pytest.approx(len(EQUAL) * (size + down) * 4 / 1e6)
    assert metrics["comm/upload_mb"] == pytest.approx(len(EQUAL) * (size + more) * 4 / 1e6)


@pytest.mark.parametrize("name", ["fednova", "fedexp", "fedsam"])
@pytest.mark.parametrize("build", BUILDS)
def test_a_single_participant_is_fedavg(name: str, build: Any) -> None:
    """FedExP's factor is 1, FedNova's normalisation cancels; FedSAM needs rho = 0."""
    overrides = {"rho": 0.0} if name == "fedsam" else {}
    fed = {"sizes": [20], "build": build}
    close(params(name, 3, fed, **overrides), params("fedavg", 3, fed))


@pytest.mark.parametrize("name", ["fednova", "fedexp", "fedsam", "fedlaw", "fedbe", "fedgen"])
def test_a_round_without_arrivals_changes_nothing(name: str) -> None:
    fed = {"sizes": RAGGED, "cohort": 2, "std": 1e6}
    assert torch.equal(params(name, 3, fed), federation().family.init(0))


def test_fedlaw_needs_labelled_examples_of_the_clients_classes() -> None:
    message = r"^algorithm=fedlaw trains on the clients' own classes: use server_data=in_domain$"
    with pytest.raises(UserError, match=message):
        algorithm("fedlaw").check(federation(server=OUT_OF_DOMAIN))
