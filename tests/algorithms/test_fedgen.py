"""FedGEN: identities with other methods, and closed forms of its steps."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.core.executor import Executor
from fedlab_runner.core.rng import Purpose, generator, generators
from fedlab_runner.utils.errors import UserError
from tests.helpers.identities import BUILDS, EXECUTORS, close, trained
from tests.helpers.toy import CLASSES, algorithm, federation, local, run


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("off", [{"alpha": 0.0, "beta": 0.0}, {"steps": 0}, {"gen_epochs": 0}])
def test_fedgen_without_regularisation_is_fedavg(executor: Executor, build: Any, off: dict[str, Any]) -> None:
    fed = {"executor": executor, "build": build}
    close(trained("fedgen", 3, fed, **off), trained("fedavg", 3, fed))


def test_fedgen_regularises_from_the_second_round_on() -> None:
    assert torch.equal(trained("fedgen", 1), trained("fedavg", 1))
    assert not torch.allclose(trained("fedgen", 2), trained("fedavg", 2))


def test_fedgen_regularises_the_first_epochs_only() -> None:
    """Of two epochs of three minibatches each."""
    none, one, both, more = (trained("fedgen", 2, {"sizes": [20]}, gen_epochs=epochs) for epochs in (0, 1, 2, 20))
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
    """Two rounds: Adam continues, its rate falls; each client teaches by its share of a label's examples; nobody has an
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
