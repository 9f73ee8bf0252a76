"""What a compiled step computes, before the compiler has it: layer by layer, it is the loop's step on vectors."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.core.additions import lasts
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.joined_models import Carrying, Pair
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.executors import graphs
from fedlab_runner.executors._autotune.measure import agrees
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils import signals
from fedlab_runner.utils.errors import Interrupted
from tests.executors.test_contract import EVERYONE, SETTINGS, train
from tests.helpers.added import ADDED, data, draws, scaled
from tests.helpers.in_process import own_handlers
from tests.helpers.kinds import in_turns
from tests.helpers.toy import federation, mlp, normed
from tests.helpers.work import work_of

OF_COMPILED: dict[str, Executor] = {"loop": Loop(compile=True), "chunks": Vectorized(chunk_size=3, compile=True)}
FROZEN = ("0.weight", "0.bias")


def steady(model: FunctionalModel, batch: Batch) -> Tensor:
    """Moves what the models carry, and looks at it."""
    model.buffers = 0.5 * model.buffers + model.params.detach()
    return model.family.loss(model, batch) + model.buffers @ model.params


def elsewhere(model: FunctionalModel, batch: Batch) -> Tensor:
    """At other parameters than those that move."""
    model.params = 0.5 * model.params.square() + 0.1
    return model.family.loss(model, batch)


def apart(model: FunctionalModel, batch: Batch) -> Tensor:
    """Of pairs: the second model's logits are seen by the first one alone."""
    first, second = (batch.mean(z.square().sum(1)) for z in model(batch.inputs))
    return first + (first.detach() - 1) * second


HOW: dict[str, dict[str, Any]] = {
    "nothing": {},
    **ADDED,
    "loss": {"loss": scaled, "per_step": draws, "common": (torch.tensor(0.7, dtype=torch.float64),)},
    "loss elsewhere": {"loss": elsewhere},
    "frozen": {"frozen": FROZEN},
    "frozen, loss elsewhere": {"frozen": FROZEN, "loss": elsewhere},
    "frozen, all": {"frozen": FROZEN, **ADDED["all"]},
}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each graph, whether its step works layer by layer. What is not compiled is the function itself."""
    kinds: list[bool] = []

    def graph_of(function: Callable[..., Any], *, layer_by_layer: bool = False) -> Callable[..., Any]:
        kinds.append(layer_by_layer)
        return function

    monkeypatch.setattr(graphs, "graph_of", graph_of)
    return kinds


@pytest.mark.parametrize(
    ("executor", "setting", "how"), in_turns(OF_COMPILED, [name for name in SETTINGS if name != "tiny_batches"], HOW)
)
def test_layers_move_as_vectors(executor: str, setting: str, how: str, compiled: list[bool]) -> None:
    found = []
    for each in (Loop(compile=False), OF_COMPILED[executor]):
        fed = federation(training=SETTINGS[setting], executor=each)
        more = {} if "common" in HOW[how] or (how not in ADDED and "all" not in how) else data(fed, len(EVERYONE))
        found.append(train(fed, **HOW[how], **more))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    assert compiled and all(compiled)


@dataclass(frozen=True)
class Listed:
    factors: list[float]

    def __call__(self, model: FunctionalModel, batch: Batch) -> Tensor:
        value: Tensor = sum(self.factors) * model.family.loss(model, batch)
        return value


def test_a_loss_without_a_hash_is_a_loss(compiled: list[bool]) -> None:
    """A field is a list: nobody can say whether the next round's is the same. Each cohort has one graph."""
    loss = Listed([0.5, 0.25])
    assert not lasts(loss) and lasts(steady) and lasts(None) and not lasts(lambda model, batch: steady(model, batch))
    reference, _ = train(federation(), loss=loss)
    for executor in OF_COMPILED.values():
        y, _ = train(federation(executor=executor), loss=loss)
        torch.testing.assert_close(y, reference, rtol=0, atol=1e-10)
    assert compiled == [False] * len(OF_COMPILED)


@pytest.mark.parametrize("kind", ["pairs", "carrying"])
@pytest.mark.parametrize("setting", ["adam", "clipped"])
@pytest.mark.parametrize("executor", OF_COMPILED)
def test_layers_of_joined_models(executor: str, setting: str, kind: str, compiled: list[bool]) -> None:
    """A bound on the norm holds for each model, and values that models carry go from step to step."""
    found = []
    for each in (Loop(compile=False), OF_COMPILED[executor]):
        fed = federation(training=SETTINGS[setting], executor=each)
        x, cohort = fed.family.init(0).expand(len(EVERYONE), -1), fed.cohort(EVERYONE)
        joined = Pair(fed.family, fed.family) if kind == "pairs" else Carrying(fed.family, fed.family.num_params)
        start = joined.join(x, 0.5 * x)
        y = cohort.train(start, joined=joined, loss=apart if kind == "pairs" else steady)
        assert not torch.equal(joined.part(y)[1], 0.5 * x)
        found.append((y, cohort.last_loss))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    assert compiled and all(compiled)


def test_a_signal_that_ends_the_systems_compiler_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C in a terminal does: `auto` would note an executor that cannot do the work."""

    def graph_of(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            raise RuntimeError("CppCompileError: C++ compile error")

        return step

    monkeypatch.setattr(graphs, "graph_of", graph_of)
    fed = federation()
    with own_handlers(), pytest.raises(Interrupted), signals.raised():
        agrees(work_of(fed), "compiled", Loop(compile=True), Loop(compile=False))


def dropping() -> nn.Module:
    return nn.Sequential(mlp(), nn.Dropout(0.3))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
@pytest.mark.parametrize("build", [normed, dropping])
def test_what_moves_as_a_vector_is_one_graph(build: Callable[[], nn.Module]) -> None:
    """The compiler would pass by a function of torch's own and leave its steps as they are."""
    from torch._dynamo.utils import counters

    counters.clear()
    one, other = (federation(build=build, executor=Loop(compile=compile)) for compile in (True, False))
    for mine, theirs in zip(train(one), train(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    assert counters["stats"]["unique_graphs"] >= 1 and not counters["graph_break"]


def noisy(model: FunctionalModel, batch: Batch) -> Tensor:
    return model.family.loss(model, batch) * (1 + torch.rand((), dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("executor", OF_COMPILED)
def test_a_loss_that_draws_is_repeated(executor: str) -> None:
    (y, losses), (again, _) = (train(federation(executor=OF_COMPILED[executor]), loss=noisy) for _ in range(2))
    _, plain = train(federation())
    assert torch.equal(y, again) and len((losses / plain)[plain > 0].unique()) > 1
