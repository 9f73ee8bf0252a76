"""The gradient on the server's minibatches does not depend on the threads that share it, but for rounding."""

from collections.abc import Iterator
from threading import Lock
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.algorithms.shared import atlas as atlas_module
from fedlab_runner.algorithms.shared import server_gradient as module
from fedlab_runner.algorithms.shared import teachers as teachers_module
from fedlab_runner.algorithms.shared.atlas import AtlasReader, combine, project
from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.algorithms.shared.server_gradient import server_gradient
from fedlab_runner.algorithms.shared.server_training import train_on_server
from fedlab_runner.algorithms.shared.teachers import mean_answers
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.executors import team as team_module
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.team import Team, team
from tests.helpers.toy import CLASSES, FEATURES, federation, mlp, normed, run, server_data
from tests.helpers.toy import algorithm as built_algorithm

TRAINING_ON_THE_SERVER = ["fedft", "feddf", "fedbe", "fedlaw", "feddle", "center"]


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
    """Of a smaller minibatch, in fewer parts, too."""
    fed = federation(build=build, server=server_data(61))
    found = {}
    for threads in (1, 3):
        torch.set_num_threads(threads)
        w = fed.family.init(0)
        with team() as its, server_gradient(fed, w, its, training=training) as gradient:
            both = [(g.clone(), value) for g, value in (gradient(batch, loss) for batch in server_batches(fed, 1, 40))]
            found[threads] = *both[0], *both[1], w
    for mine, theirs in zip(found[3], found[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    # Batch norm in training needs the whole minibatch.
    assert shared == ([1] * 4 if build is normed and training else [1, 1, 3, 2])


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
        with team() as its, server_gradient(fed, w, its, training=False, instead=head) as gradient:
            g, _ = gradient(batch, lambda model, its: F.cross_entropy(model(its.inputs), its.targets))
        torch.testing.assert_close(g, expected, rtol=0, atol=1e-13)
        assert bool((g[family.segments(layer.name)] == 0).all())
    assert torch.equal(family.evaluate(w, w[:0], batch.inputs), family.evaluate(w, w[:0], batch.inputs, {}))


def test_a_small_rest_is_not_shared(shared: list[int]) -> None:
    torch.set_num_threads(4)
    fed = federation(server=server_data(75))
    train_on_server(fed, fed.family.init(0), server_batches(fed, 1, 33), 0.01)
    assert shared == [4, 4, 1]  # of 33, 33 and 9 examples


def test_threads_share_the_step_to_the_bit(shared: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_module, "ALIGNED_VALUES", 16)
    torch.set_num_threads(2)
    fed, found = federation(server=server_data(66)), []
    for least in (10**6, 0):
        monkeypatch.setattr(team_module, "MIN_SHARED_VALUES", least)
        found.append(train_on_server(fed, fed.family.init(0), server_batches(fed, 2, 33), 0.01))
    assert torch.equal(found[0].model, found[1].model)
    assert all(map(torch.equal, found[0].slots, found[1].slots))
    assert shared == [2] * 4 + [2, 2, 2] * 4  # the gradient; then its sum and the step too


def test_dropout_draws_from_one_stream(shared: list[int]) -> None:
    torch.set_num_threads(2)
    fed = federation(build=lambda: nn.Sequential(mlp(), nn.Dropout(0.5)), server=server_data(40))
    train_on_server(fed, fed.family.init(0), server_batches(fed, 1, 40), 0.01)
    assert shared == [1]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that would have been compiled. They run as they are, one at a time: they bind the module."""
    functions: list[Any] = []
    alone = Lock()

    def graph_of(function: Any, *, layer_by_layer: bool, whole: bool) -> Any:
        assert layer_by_layer and whole
        functions.append(function)

        def one(*args: Any) -> Any:
            with alone:
                return function(*args)

        return one

    monkeypatch.setattr(module, "graph_of", graph_of)
    return functions


@pytest.mark.parametrize("loss", [None, divergence])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("build", [mlp, normed])
def test_what_is_compiled_is_the_gradient(build: Any, training: bool, loss: Any, graphs: list[Any]) -> None:
    torch.set_num_threads(3)
    found = []
    for compile in (False, True):
        fed = federation(build=build, server=server_data(61), executor=Loop(compile=compile))
        with team() as its, server_gradient(fed, fed.family.init(0), its, 1, training=training) as gradient:
            (batch,) = server_batches(fed, 1, 61)
            g, value = gradient(batch, loss)
            found.append((g.clone(), value))
            if compile:
                gradient(batch, loss)
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    # Parts of 21 and 20 examples; batch norm in training writes its statistics.
    assert len(graphs) == (0 if build is normed and training else 2)


def test_the_last_minibatch_of_an_epoch_and_what_is_not_trained_need_no_graph(graphs: list[Any]) -> None:
    torch.set_num_threads(2)
    fed = federation(server=server_data(75), executor=Loop(compile=True))
    x = fed.family.init(0)
    for _ in range(2):
        mine = train_on_server(fed, x, server_batches(fed, 2, 32), 0.01).model
    assert len(graphs) == 1, "of 16 of 32 examples, and not of 11"
    with team() as its, server_gradient(fed, x, its) as gradient:
        (batch,) = server_batches(fed, 1, 75)
        gradient(batch)
    assert len(graphs) == 1
    other = federation(server=server_data(75))
    torch.testing.assert_close(train_on_server(other, x, server_batches(fed, 2, 32), 0.01).model, mine)
    assert len(graphs) == 1, "this executor compiles nothing"


@pytest.mark.parametrize("fault", ["fails", "differs"])
def test_without_a_right_graph_the_steps_are_not_compiled(
    fault: str, graphs: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def graph_of(function: Any, **_: Any) -> Any:
        def wrong(*args: Any) -> Any:
            if fault == "fails":
                raise RuntimeError("no space left on the device\nsecond line")
            found, value = function(*args)
            return [1.01 * g for g in found], value

        return wrong

    monkeypatch.setattr(module, "graph_of", graph_of)
    models = []
    for compile in (True, False):
        fed = federation(server=server_data(75), executor=Loop(compile=compile))
        models.append(train_on_server(fed, fed.family.init(0), server_batches(fed, 2, 32), 0.01).model)
    assert torch.equal(*models)
    (told,) = caplog.messages
    why = {"fails": "no space left on the device", "differs": "they differ from uncompiled ones"}[fault]
    assert told == f"the server's steps are not compiled: {why}"


def unbiased() -> nn.Module:
    """Without a bias before batch norm, whose gradient is rounding, which FedBE makes a direction of."""
    layers = nn.Linear(FEATURES, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)
    return nn.Sequential(*layers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
@pytest.mark.parametrize("build", [mlp, unbiased])
@pytest.mark.parametrize("name", TRAINING_ON_THE_SERVER)
def test_compiled_rounds_are_the_same(name: str, build: Any, caplog: pytest.LogCaptureFixture) -> None:
    from torch._dynamo.utils import counters

    torch.set_num_threads(3)
    how: dict[str, Any] = {"build": build, "server": server_data(75)}
    plain, compiled = federation(**how), federation(**how, executor=Loop(compile=True))
    built = built_algorithm(name, epochs=2, batch_size=32, lr=0.05)
    states = [built.init(plain)] * 2
    for round in range(3):
        counters.clear()
        for i, fed in enumerate((plain, compiled)):
            fed.begin(round, 1.0)
            states[i] = built.round(states[i], fed)
        torch.testing.assert_close(*map(built.models, states), rtol=0, atol=1e-8)
        assert round == 0 or not counters["stats"], "nothing is compiled in later rounds"
    assert not [each for each in caplog.records if each.name == module.__name__]
    in_evaluation = name in ("feddle",)
    on_server = [key for key in compiled.family.compiled if key[0] == "server"]
    assert bool(on_server) == (build is mlp or in_evaluation)


def two_rounds(name: str, threads: int) -> tuple[Tensor, dict[str, float]]:
    torch.set_num_threads(threads)
    fed, built = federation(server=server_data(75)), built_algorithm(name, epochs=2, batch_size=32, lr=0.05)
    state = run(built, fed, 2)
    return built.models(state), fed.collect()


@pytest.mark.parametrize("name", TRAINING_ON_THE_SERVER)
def test_an_algorithms_rounds_are_the_same_on_several_threads(name: str, shared: list[int]) -> None:
    (one, counted), (several, also) = (two_rounds(name, threads) for threads in (1, 3))
    torch.testing.assert_close(several, one, rtol=0, atol=1e-11)
    assert set(shared) >= {1, 3} and counted["cost/server_gflops"] == pytest.approx(also["cost/server_gflops"])


def test_answers_are_the_same_on_several_threads(shared: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teachers_module, "ANSWERED_AT_ONCE", 32)
    fed = federation(build=normed, server=server_data(75))
    teachers = torch.stack([fed.family.init(seed) for seed in range(3)])
    torch.set_num_threads(1)
    one = mean_answers(fed, teachers)
    torch.set_num_threads(3)
    torch.testing.assert_close(mean_answers(fed, teachers), one, rtol=0, atol=1e-13)
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
