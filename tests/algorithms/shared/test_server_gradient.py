"""The gradient on the server's minibatches does not depend on the threads that share it, but for rounding."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.algorithms.shared import atlas as atlas_module
from fedlab_runner.algorithms.shared import server_gradient as module
from fedlab_runner.algorithms.shared.atlas import AtlasReader, combine, project
from fedlab_runner.algorithms.shared.server_gradient import server_gradient
from fedlab_runner.algorithms.shared.server_training import mean_answers, server_batches, train_on_server
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.executors.team import Team, team
from tests.helpers.toy import algorithm as built_algorithm
from tests.helpers.toy import federation, mlp, normed, run, server_data


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "MIN_SHARED_FLOPS", 0)
    monkeypatch.setattr(atlas_module, "MIN_SHARED_VALUES", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of parts that have been shared."""
    each, parts = Team.each, list[int]()

    def noted(self: Team, function: Any, count: int) -> Any:
        parts.append(count)
        return each(self, function, count)

    monkeypatch.setattr(Team, "each", noted)
    return parts


def divergence(model: FunctionalModel, batch: Batch) -> Tensor:
    return (F.log_softmax(model(batch.inputs), 1).square().sum(1) * batch.mask).mean()


@pytest.mark.parametrize("loss", [None, divergence])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("build", [mlp, normed])
def test_parts_add_up_to_the_gradient_of_the_whole(build: Any, training: bool, loss: Any, shared: list[int]) -> None:
    fed = federation(build=build, server=server_data(61))
    found = {}
    for threads in (1, 3):
        torch.set_num_threads(threads)
        w = fed.family.init(0)
        with team() as its, server_gradient(fed.family, w, its, training=training) as gradient:
            (batch,) = server_batches(fed, 1, 61)
            g, value = gradient(batch, loss)
            found[threads] = g.clone(), value, w
    for mine, theirs in zip(found[3], found[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    # Batch norm in training needs the whole minibatch.
    assert shared == ([1, 1] if build is normed and training else [1, 3])


def test_a_replaced_layer_may_have_more_classes_and_has_no_gradient() -> None:
    fed = federation(server=server_data(40, num_classes=7))
    family, w = fed.family, fed.family.init(0)
    layer = family.classifier
    assert layer is not None
    head = {f"{layer.name}.weight": torch.randn(7, layer.num_features).double()}
    head |= {f"{layer.name}.bias": torch.randn(7).double()}
    (batch,) = server_batches(fed, 1, 40)
    leaf = w.clone().requires_grad_()
    logits = family.evaluate(leaf[: family.num_params], leaf[family.num_params :], batch.inputs, head)
    (expected,) = torch.autograd.grad(F.cross_entropy(logits, batch.targets), leaf)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with team() as its, server_gradient(family, w, its, training=False, instead=head) as gradient:
            g, _ = gradient(batch, lambda model, its: F.cross_entropy(model(its.inputs), its.targets))
        torch.testing.assert_close(g, expected, rtol=0, atol=1e-13)
        assert bool((g[family.segments(layer.name)] == 0).all())
    assert torch.equal(family.evaluate(w, w[:0], batch.inputs), family.evaluate(w, w[:0], batch.inputs, {}))


def test_a_small_rest_is_not_shared(shared: list[int]) -> None:
    torch.set_num_threads(4)
    fed = federation(server=server_data(75))
    train_on_server(fed, fed.family.init(0), server_batches(fed, 1, 33), 0.01)
    assert shared == [4, 4, 1]  # of 33, 33 and 9 examples


def test_dropout_draws_from_one_stream(shared: list[int]) -> None:
    torch.set_num_threads(2)
    fed = federation(build=lambda: nn.Sequential(mlp(), nn.Dropout(0.5)), server=server_data(40))
    train_on_server(fed, fed.family.init(0), server_batches(fed, 1, 40), 0.01)
    assert shared == [1]


def two_rounds(name: str, threads: int) -> tuple[Tensor, dict[str, float]]:
    torch.set_num_threads(threads)
    fed, built = federation(server=server_data(75)), built_algorithm(name, epochs=2, batch_size=32, lr=0.05)
    state = run(built, fed, 2)
    return built.models(state), fed.collect()


@pytest.mark.parametrize("name", ["fedft", "feddf", "fedbe", "fedlaw", "feddle", "center"])
def test_an_algorithms_rounds_are_the_same_on_several_threads(name: str, shared: list[int]) -> None:
    (one, counted), (several, also) = (two_rounds(name, threads) for threads in (1, 3))
    torch.testing.assert_close(several, one, rtol=0, atol=1e-11)
    assert set(shared) >= {1, 3} and counted["cost/server_gflops"] == pytest.approx(also["cost/server_gflops"])


def test_answers_are_the_same_on_several_threads(shared: list[int]) -> None:
    fed = federation(build=normed, server=server_data(75))
    teachers = torch.stack([fed.family.init(seed) for seed in range(3)])
    torch.set_num_threads(1)
    one = mean_answers(fed, teachers, 32)
    torch.set_num_threads(3)
    torch.testing.assert_close(mean_answers(fed, teachers, 32), one, rtol=0, atol=1e-13)
    assert set(shared) == {1, 3}


@pytest.mark.parametrize(("size", "parts"), [(5, 1), (64, 1), (200, 2), (1000, 3)])
def test_parts_of_the_atlas_are_the_atlas(size: int, parts: int, shared: list[int]) -> None:
    torch.set_num_threads(3)
    anchors, weights = torch.randn(6, size).double(), torch.randn(6).double()
    x, g, out = torch.randn(size).double(), torch.randn(size).double(), torch.empty(size).double()
    with team() as its:
        reader = AtlasReader(anchors, 4, torch.device("cpu"), its)
        torch.testing.assert_close(reader.combine(x, weights, out), x + weights @ anchors, rtol=0, atol=1e-12)
        torch.testing.assert_close(reader.project(g), anchors @ g, rtol=0, atol=1e-12)
    assert shared == [parts] * 2 and not torch.equal(out, x)
    torch.testing.assert_close(combine(x, anchors, weights), out, rtol=0, atol=1e-12)
    torch.testing.assert_close(project(g, anchors), anchors @ g, rtol=0, atol=1e-12)
