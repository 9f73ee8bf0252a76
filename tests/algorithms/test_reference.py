"""The curves of FedAvg, SCAFFOLD and FedBuff are those of independent plain loops (`reference_loops.py`)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.core.federation import Federation
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers import reference_loops as reference
from tests.helpers.paths import ROOT
from tests.helpers.toy import CLASSES, RAGGED, algorithm, federation, local

ROUNDS, LR, HIDDEN = 25, 0.2, 6
TOLERANCE = 1e-12  # of a weight; the sums of the two are not made in the same order
EXECUTORS = {"loop": Loop(compile=False), "vectorized": Vectorized(chunk_size=None, compile=False)}


def drawn(fed: Federation) -> reference.Problem:
    """What a federation draws in `ROUNDS` rounds."""
    work = []
    for round in range(ROUNDS):
        fed.begin(round, 1.0)
        cohort = fed.start_cohort(())
        plan = fed.client_data.plan(cohort.client_ids, fed.local, seed=fed.seed, round=round, drop_single=False)
        for k, (client, arrival) in enumerate(zip(cohort.client_ids.tolist(), cohort.due.tolist(), strict=True)):
            steps = [(plan.indices[k, i, :size].numpy(), size) for i, size in enumerate(plan.sizes[k])]
            batches = [rows for rows, size in steps if size]
            examples = int(fed.client_data.num_examples[client])
            work.append(reference.Dispatch(client, round, arrival, examples, batches))
    inputs, targets = fed.client_data.inputs.numpy(), fed.client_data.targets.numpy()
    return reference.Problem(inputs, targets, HIDDEN, CLASSES, work, ROUNDS, LR)


def models(name: str, fed: Federation, **changes: Any) -> list[np.ndarray]:
    """The server's model after each round."""
    built: Any = algorithm(name, **changes)
    state, found = built.init(fed), []
    for round in range(ROUNDS):
        fed.begin(round, 1.0)
        state = built.round(state, fed)
        found.append(built.models(state).numpy().copy())
    return found


CASES: dict[str, tuple[float, dict[str, Any], Callable[[reference.Problem, np.ndarray], list[np.ndarray]]]] = {
    # name: the spread of delays, what the algorithm is given, the reference
    "fedavg": (0.0, {}, reference.fedavg),
    "fedavg, late": (4.0, {}, reference.fedavg),
    "scaffold": (0.0, {"server_lr": 0.8}, lambda p, w: reference.scaffold(p, w, 0.8, len(RAGGED))),
    "fedbuff": (
        4.0,
        {"buffer_size": 3, "server_lr": 0.7, "staleness_exp": 0.5},
        lambda p, w: reference.fedbuff(p, w, 0.7, 3, 0.5),
    ),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("case", CASES)
def test_the_curve_is_that_of_plain_loops(case: str, executor: str) -> None:
    std, changes, plain = CASES[case]

    def fresh() -> Federation:
        return federation(cohort=3, std=std, training=local(lr=LR), executor=EXECUTORS[executor])

    fed = fresh()
    problem, start = drawn(fresh()), fed.family.init(fed.seed).numpy()
    mine, theirs = models(case.partition(",")[0], fed, **changes), plain(problem, start)
    for round, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE, err_msg=f"round {round}")
    curve = [reference.accuracy(problem, w) for w in mine]
    assert curve == [reference.accuracy(problem, w) for w in theirs]
    assert curve[-1] > 0.75 > curve[0], "it is a curve worth comparing"
    late = any(one.arrival > one.start for one in problem.work)
    assert late == (std > 0)


def test_the_reference_sees_a_difference() -> None:
    """A slightly other rule is not within the tolerance: the comparison can fail."""
    fed = federation(cohort=3, std=4.0, training=local(lr=LR))
    problem = drawn(federation(cohort=3, std=4.0, training=local(lr=LR)))
    mine = models("fedbuff", fed, buffer_size=3, server_lr=0.7, staleness_exp=0.5)
    theirs = reference.fedbuff(problem, federation().family.init(0).numpy(), 0.7, 3, 0.501)
    assert max(np.abs(a - b).max() for a, b in zip(mine, theirs, strict=True)) > 100 * TOLERANCE


def test_the_gradient_written_by_hand_is_that_of_autograd() -> None:
    fed = federation()
    problem, w = drawn(fed), fed.family.init(3)
    rows = np.arange(10)
    params = w.clone().requires_grad_()
    logits = fed.family.forward(fed.family.views(params), fed.client_data.inputs[rows])
    torch.nn.functional.cross_entropy(logits, fed.client_data.targets[rows]).backward()
    assert params.grad is not None
    np.testing.assert_allclose(reference.gradient(problem, w.numpy(), rows), params.grad.numpy(), rtol=0, atol=1e-14)


def test_the_page_says_what_is_asked_for() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text()
    assert f"agree to {TOLERANCE:.0e}," in page and f"after each of {ROUNDS} rounds" in page
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(CASES)
    for row in rows:
        measured = [float(cell) for cell in row.strip("| ").split(" | ")[3:]]
        assert len(measured) == len(EXECUTORS) and max(measured) < TOLERANCE
