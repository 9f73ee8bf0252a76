"""Every value of every algorithm's State is that of a plain loop written from its paper (the files beside this one)."""

import ast
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlab_runner.core.work import Executor
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.toy import RAGGED, algorithm
from tests.reference.harness import TOLERANCE, all_cases, build, curve, keys, largest_difference, problem
from tests.reference.plain import Case

CASES = [(case, models) for case in all_cases() for models in case.models]
NAMES = [f"{case.name}, {'+'.join(models)}" for case, models in CASES]
EXECUTORS: dict[str, Executor] = {
    "vectorized": Vectorized(chunk_size=2, compile=False),
    "processes": Processes(workers=2, inner=Loop(compile=False)),
}
COMPILED: dict[str, Executor] = {
    "loop": Loop(compile=True),
    "vectorized": Vectorized(chunk_size=2, compile=True),
}
EXECUTOR_ROUNDS = 2  # the first, and one that starts from what it leaves
SOURCES = sorted(path for path in Path(__file__).parent.glob("*.py") if path.stem not in ("harness", "test_reference"))


def check(case: Case, models: tuple[str, ...], rounds: int, executor: Executor | None = None) -> None:
    """The package and the reference loop have the same State after each of the first rounds."""
    drawn = problem(build(case, models), case.rounds, late=case.std > 0)
    theirs = case.reference(drawn, **keys(case))
    pairs = zip(curve(case, build(case, models, executor), rounds), islice(theirs, rounds), strict=True)
    for round, (mine, other) in enumerate(pairs):
        apart = largest_difference(mine, other)
        assert apart < TOLERANCE, f"round {round}: the States differ by {apart:.1e}"


@pytest.mark.parametrize(("case", "models"), CASES, ids=NAMES)
def test_the_state_is_that_of_the_reference_loop_after_every_round(case: Case, models: tuple[str, ...]) -> None:
    assert case.rounds >= 5
    check(case, models, case.rounds)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("case", "models"), CASES, ids=NAMES)
def test_every_executor_agrees(case: Case, models: tuple[str, ...], executor: str) -> None:
    check(case, models, EXECUTOR_ROUNDS, EXECUTORS[executor])


@pytest.mark.slow
@pytest.mark.parametrize("executor", COMPILED)
@pytest.mark.parametrize(("case", "models"), CASES, ids=NAMES)
def test_every_compiled_executor_agrees(case: Case, models: tuple[str, ...], executor: str) -> None:
    check(case, models, EXECUTOR_ROUNDS, COMPILED[executor])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_reference_imports_nothing_of_the_package(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    assert {"tests.reference.plain"} | {each for each in imported if not each.startswith("tests")} >= imported
    assert not any(each.partition(".")[0] == "fedlab_runner" for each in imported)


@pytest.mark.parametrize(("case", "models"), CASES, ids=NAMES)
def test_a_case_is_worth_comparing(case: Case, models: tuple[str, ...]) -> None:
    """A client with one example takes part, and the model moves."""
    drawn = problem(build(case, models), case.rounds, late=case.std > 0)
    alone = {client for client, n in enumerate(RAGGED) if n == 1}
    states: list[Any] = list(case.reference(drawn, **keys(case)))
    assert len(states) == case.rounds
    assert algorithm(case.method).decentralized or alone & {
        start.client for t in range(case.rounds) for start in drawn.cohort(t)
    }
    first, last = (next(iter(state.values())) for state in (states[0], states[-1]))
    assert largest_difference(first, last) > 1e-3


def test_the_comparison_can_fail() -> None:
    case = next(case for case in all_cases() if case.method == "fedavg")
    drawn = problem(build(case, case.models[0]), case.rounds, late=case.std > 0)
    other = case.reference(drawn, **(keys(case) | {"server_lr": 1.0 + 1e-6}))
    first = next(curve(case, build(case, case.models[0]), 1))
    assert largest_difference(first, next(other)) > 100 * TOLERANCE
    with pytest.raises(AssertionError, match="params"):
        largest_difference({"params": torch.zeros(3)}, {"params": torch.zeros(4)})
    with pytest.raises(AssertionError, match="State"):
        largest_difference({"params": torch.zeros(3)}, {})
