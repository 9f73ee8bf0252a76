"""Client operations are those of the steps that clients take: counted while they train, or worked out on paper."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.core.federation import Federation
from fedlab_runner.core.flops import FlopCounter
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import Batch, FunctionalModel
from tests.helpers.toy import ALGORITHMS, CLASSES, FEATURES, RAGGED, algorithm, federation, local, mlp, normed, run

KEY = "cost/client_gflops"
# Of the toy's MLP, 5 - 6 - 3, for one example: forward, the gradients of the weights and of the hidden layer.
FORWARD = 2 * (FEATURES * 6 + 6 * CLASSES)
STEP = 2 * FORWARD + 2 * 6 * CLASSES


def convolutional() -> nn.Module:
    first = [nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(6, CLASSES))


def operations(fed: Federation, **how: Any) -> int:
    """What one training of everyone is said to cost."""
    fed.begin(0, 1.0)
    ids = np.arange(fed.num_clients)
    fed.cohort(ids).train(fed.family.init(0), **how)
    return round(1e9 * fed.collect()[KEY])


def done(fed: Federation, **how: Any) -> int:
    """The operations that PyTorch counts while everyone trains; what it costs to count is left out."""
    operations(fed, **how)  # from now on the cost of a step is known
    with FlopCounter() as counter:
        operations(fed, **how)
    return counter.total


def test_a_plain_step_costs_what_it_does_on_paper() -> None:
    assert operations(federation(RAGGED)) == pytest.approx(2 * sum(RAGGED) * STEP)
    assert federation(RAGGED).family.flops(torch.zeros(1, FEATURES, dtype=torch.float64)) == (FORWARD, STEP)


@pytest.mark.parametrize("build", [mlp, normed, convolutional])
@pytest.mark.parametrize(
    "training",
    [local(), local(batch_size=3, epochs=1), local(epochs=None, steps=5, batch_size=6)],
    ids=["epochs", "small", "steps"],
)
def test_it_is_what_the_loop_does(build: Any, training: LocalTraining) -> None:
    fed = federation(RAGGED, build=build, training=training)
    assert operations(fed) == done(fed) > 0


def test_it_is_what_the_loop_does_with_one_example_at_a_time() -> None:
    fed = federation(RAGGED, training=local(batch_size=1))
    assert operations(fed) == done(fed) == pytest.approx(2 * sum(RAGGED) * STEP)


def test_a_second_gradient_and_what_a_loss_adds_count() -> None:
    more = torch.ones(7, FEATURES, dtype=torch.float64)

    def loss(model: FunctionalModel, batch: Batch) -> Tensor:
        return model.family.loss(model, batch) + model(more).square().sum()

    fed = federation(RAGGED)
    plain = operations(fed)
    assert operations(fed, perturb=lambda g: 0.1 * g) == 2 * plain == done(fed, perturb=lambda g: 0.1 * g)
    steps = int(fed.client_data.num_steps(np.arange(len(RAGGED)), fed.local, False).sum())
    assert operations(fed, loss=loss) == plain + steps * 7 * STEP == done(fed, loss=loss)


def test_what_clients_do_to_report_losses_counts() -> None:
    fed = federation(RAGGED)
    plain = operations(fed)
    fed.begin(1, 1.0)
    fed.report_losses()
    ids = np.arange(fed.num_clients)
    fed.cohort(ids).train(fed.family.init(0))
    assert 1e9 * fed.collect()[KEY] == pytest.approx(plain + sum(RAGGED) * FORWARD)


def test_who_takes_no_step_costs_nothing() -> None:
    fed = federation([0, 4])
    fed.begin(0, 1.0)
    fed.cohort(np.array([0])).train(fed.family.init(0))
    assert fed.collect()[KEY] == 0
    assert operations(fed) == pytest.approx(2 * 4 * STEP)


def test_a_step_is_counted_once_for_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedlab_runner.core import training_cost

    calls = []
    counted = training_cost._counted
    monkeypatch.setattr(training_cost, "_counted", lambda work: calls.append(work.round) or counted(work))
    run(algorithm("fedprox"), federation(RAGGED), 4)
    assert calls == [0]


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"center"}))
def test_every_algorithm_with_clients_says_what_they_cost(name: str) -> None:
    fed = federation([6, 3, 9, 1, 12, 8], cohort=3)
    run(algorithm(name), fed, 1)
    assert fed.collect()[KEY] > 0


def test_counting_leaves_training_as_it_is() -> None:
    """Dropout draws nothing for it, and batch norm is not moved by it."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, CLASSES))

    models = []
    for known in (False, True):
        fed = federation([4, 9], build=build)
        if known:
            operations(fed)
        fed.begin(3, 1.0)
        models.append(fed.cohort(np.arange(2)).train(fed.family.init(0)))
    assert torch.equal(*models)


def test_examples_seen_are_those_of_the_plan() -> None:
    for training in (local(), local(epochs=None, steps=7), local(batch_size=1), local(batch_size=3)):
        for drop_single in (False, True):
            fed = federation([0, *RAGGED], training=training)
            ids = np.arange(len(RAGGED) + 1)
            plan = fed.client_data.plan(ids, training, seed=0, round=0, drop_single=drop_single)
            seen = fed.client_data.examples_seen(ids, training, drop_single)
            assert seen.tolist() == plan.sizes.sum(1).tolist()


def test_a_grouped_convolution_is_counted_once() -> None:
    """As many operations as its groups one after another: forward and the gradient of the weights."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 5)),
            nn.Conv1d(1, 4, 2),
            nn.Conv1d(4, 4, 2, groups=2),
            nn.Flatten(),
            nn.Linear(12, CLASSES),
        )

    first, second, last = 4 * 4 * 2, 3 * 4 * 2 * 2, 12 * CLASSES
    step = 2 * (2 * first + 3 * second + 3 * last)  # the inputs need no gradient
    assert operations(federation(RAGGED, build=build)) == pytest.approx(2 * sum(RAGGED) * step)
