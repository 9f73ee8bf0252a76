"""Every value of every algorithm's State is that of a plain loop written from its paper (the files beside this one)."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.core.executor import Executor
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.ray import Ray
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.toy import CLASSES, RAGGED, algorithm, examples, mlp
from tests.reference.harness import FACTOR, TOLERANCE, all_cases, build, curve, keys, largest_difference, problem
from tests.reference.plain import Case, Fields, Net, gradient

CASES = [(case, models) for case in all_cases() for models in case.models]
NAMES = [f"{case.name}, {'+'.join(models)}" for case, models in CASES]
FIRST = list({case.method: name for (case, _), name in reversed([*zip(CASES, NAMES, strict=True)])}.values())
FIRST_CASES = [CASES[NAMES.index(name)][0] for name in FIRST]
# The first case of each method with all its models; of another the last, which has statistics, where clients are late.
PLAIN = [
    name
    for (case, models), name in zip(CASES, NAMES, strict=True)
    if case in FIRST_CASES or models == case.models[-1 if case.std > 0 else 0]
]
SIDE_BY_SIDE = Vectorized(chunk_size=2, compile=False)
OTHERS: dict[str, Executor] = {
    "processes": Processes(workers=2, inner=Loop(compile=False)),
    "loop, compiled": Loop(compile=True),
    "vectorized, compiled": Vectorized(chunk_size=2, compile=True),
}
MATCHING = ["fedma", "gamf", "hyfem"]
EXECUTOR_ROUNDS = 2  # the first, and one that starts from what it leaves
SOURCES = sorted(path for path in Path(__file__).parent.glob("*.py") if path.stem not in ("harness", "test_reference"))


def slow_without(names: list[str]) -> list[Any]:
    """All cases as parameters of a test; those without these names are marked slow."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@cache
def by_reference(name: str) -> list[Fields]:
    """The States of a case's reference loop after each round."""
    case, models = CASES[NAMES.index(name)]
    drawn = problem(build(case, models), case.rounds, case.std > 0, FACTOR)
    return list(case.reference(drawn, **keys(case)))


def check(name: str, rounds: int | None = None, executor: Executor | None = None) -> None:
    """The package and the reference loop have the same State after each of the first rounds (None: after all)."""
    (case, models), theirs = CASES[NAMES.index(name)], by_reference(name)[:rounds]
    pairs = zip(curve(case, build(case, models, executor), len(theirs)), theirs, strict=True)
    for round, (mine, other) in enumerate(pairs):
        apart = largest_difference(mine, other)
        assert apart < TOLERANCE, f"round {round}: the States differ by {apart:.1e}"


@pytest.mark.parametrize("name", slow_without(PLAIN))
def test_the_state_is_that_of_the_reference_loop_after_every_round(name: str) -> None:
    check(name)
    check_that_it_is_worth_comparing(name)


@pytest.mark.parametrize("name", slow_without(FIRST))
def test_clients_side_by_side_agree(name: str) -> None:
    """In the first case of each method; in the slow tests in all."""
    check(name, EXECUTOR_ROUNDS, SIDE_BY_SIDE)


@pytest.mark.slow
@pytest.mark.parametrize("executor", OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_other_executor_agrees(name: str, executor: str) -> None:
    check(name, EXECUTOR_ROUNDS, OTHERS[executor])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    """An executor on a Ray cluster of this machine."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    executor = Ray(address=None, num_gpus=0, inner=Loop(compile=False))
    yield executor
    if (session := executor.__dict__.get("_session")) is not None:
        session.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
def test_a_cluster_agrees(name: str, cluster: Ray) -> None:
    check(name, EXECUTOR_ROUNDS, cluster)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_reference_imports_nothing_of_the_package(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    others = {f"tests.reference.{source.stem}" for source in SOURCES}
    assert others >= {each for each in imported if each.startswith("tests")}
    assert not any(each.partition(".")[0] == "fedlab_runner" for each in imported)


def check_that_it_is_worth_comparing(name: str) -> None:
    """It has five rounds or more, a client with one example takes part, and the model moves."""
    (case, models), states = CASES[NAMES.index(name)], by_reference(name)
    assert len(states) == case.rounds >= 5
    fed, alone = build(case, models), {client for client, n in enumerate(RAGGED) if n == 1}
    starts = {client for start in fed.ahead(case.rounds) for client in start.ids.tolist()}
    assert algorithm(case.method).decentralized or alone & starts
    first, last = (first_value(state) for state in (states[0], states[-1]))
    assert largest_difference(first, last) > 1e-3


def first_value(state: Any) -> Any:
    """A State's first field: models; that of its base's State where it has one."""
    return first_value(next(iter(state.values()))) if isinstance(state, dict) else state


@pytest.mark.parametrize("method", MATCHING)
def test_neurons_change_places(method: str) -> None:
    """In some case of each method that matches; where all stay, a mean of the models as they are would agree too."""

    def moved(case: Case) -> float:
        """The share of neurons that the first round puts elsewhere."""
        fed = build(case, case.models[-1])
        next(curve(case, fed, 1))
        return fed.collect().get("algorithm/moved_neurons", 0.0)

    assert any(moved(case) > 0.3 for case in all_cases() if case.method == method)


def test_the_gradient_of_the_loops_is_that_written_by_hand() -> None:
    """Of the mean cross entropy of a network with one tanh layer, in NumPy."""
    net, (inputs, targets) = Net(mlp), examples(12)
    w = torch.from_numpy(np.random.default_rng(3).normal(size=net.num_params))
    w1, b1, w2, b2 = (tensor.numpy() for tensor in net.tensors(w).values())
    h = np.tanh(inputs.numpy() @ w1.T + b1)
    odds = np.exp(h @ w2.T + b2)
    dz = odds / odds.sum(1, keepdims=True) - np.eye(CLASSES)[targets.numpy()]
    dh = (dz @ w2) * (1 - h**2)
    by_hand = np.concatenate([(dh.T @ inputs.numpy()).ravel(), dh.sum(0), (dz.T @ h).ravel(), dz.sum(0)]) / len(h)
    found, _ = gradient(net, w, w[:0], inputs, targets)
    np.testing.assert_allclose(found.numpy(), by_hand, rtol=0, atol=1e-14)


def test_the_comparison_can_fail() -> None:
    case = next(case for case in all_cases() if case.method == "fedavg")
    drawn = problem(build(case, case.models[0]), case.rounds, case.std > 0, FACTOR)
    other = case.reference(drawn, **(keys(case) | {"server_lr": keys(case)["server_lr"] * (1 + 1e-6)}))
    first = next(curve(case, build(case, case.models[0]), 1))
    assert largest_difference(first, next(other)) > 100 * TOLERANCE
    with pytest.raises(AssertionError, match="params"):
        largest_difference({"params": torch.zeros(3)}, {"params": torch.zeros(4)})
    with pytest.raises(AssertionError, match="State"):
        largest_difference({"params": torch.zeros(3)}, {})
