"""The benchmark's contenders do the same work, and its numbers say what they claim."""

import copy
import json
from pathlib import Path

import pytest
import torch

from benchmarks import plain, run, workloads
from benchmarks.rows import Case, Contender, all_rows
from benchmarks.table import plot, table
from benchmarks.workloads import Shape
from fedlab_runner.distillation import Learners, mutual_learning, mutual_losses, teacher_weights
from fedlab_runner.executors.loop import Loop

ALL_AT_ONCE = Shape(clients=6, examples=8, cohort=4, batch=8, side=28)  # one minibatch: its order does not matter


@pytest.mark.parametrize("train", [plain.train_cohort, plain.train_cohort_lean])
def test_the_plain_loops_do_what_the_executors_do(train: object) -> None:
    fed = ALL_AT_ONCE.federation(workloads.mlp)
    work = workloads.work_of(fed)
    y, _ = Loop(compile=False).train(work)
    expected = fed.task.state_dict(y.mean(0))
    found = train(work, workloads.mlp)  # type: ignore[operator]
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
        assert not torch.equal(value, fed.task.state_dict(work.start)[name])


def test_the_plain_mutual_learning_does_what_ours_does() -> None:
    fed = ALL_AT_ONCE.federation(workloads.logistic)
    models = torch.stack([fed.task.init(seed) for seed in range(3)])
    modules = [workloads.logistic() for _ in models]
    for module, w in zip(modules, models, strict=True):
        module.load_state_dict(fed.task.state_dict(w))
    before = copy.deepcopy(modules[0].state_dict())
    weights = teacher_weights(torch.ones(3))
    (learnt,) = mutual_learning(
        fed, 0, [Learners(fed.task, models)], 1, lambda z, batch: mutual_losses(z, batch, weights, 0.4, 0.6)
    )
    plain.learn_mutually(fed.population, 0, modules, ALL_AT_ONCE.batch, fed.lr, 0.6)
    for module, w in zip(modules, learnt, strict=True):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(value, fed.task.state_dict(w)[name], rtol=0, atol=1e-6)
    assert not torch.equal(before["1.weight"], modules[0].state_dict()["1.weight"])


def test_the_plain_evaluation_is_ours() -> None:
    fed = ALL_AT_ONCE.federation(workloads.mlp)
    work = workloads.work_of(fed)
    logits = fed.task.predict(work.start, fed.population.inputs)
    expected = float((logits.argmax(1) == fed.population.targets).float().mean())
    assert plain.accuracy(work, workloads.mlp, 7) == pytest.approx(expected)


def test_what_is_measured_is_a_round_in_a_steady_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = [0.0]
    monkeypatch.setattr(run.time, "perf_counter", lambda: clock[0])

    def costs(*rounds: float) -> Contender:
        """Of a turn; a turn begins with rounds that do not count."""
        left = list(rounds)

        def call(number: int) -> None:
            clock[0] += left.pop(0)
            if not left:
                left.extend(rounds)

        return Contender(call, note=lambda: "named")

    case = Case(
        {"slow": costs(9.0, 9.0, 2.0), "fast": costs(9.0, 9.0, *[0.5 / 16] * 4)}, flops=4e9, pieces=(10, "step")
    )
    found = run.measured(case, repeat=3, gflops=4.0)
    assert found["slow"] == {
        "seconds": 2.0, "median_seconds": 2.0, "speed": 1.0, "note": "named", "limit": 0.5, "ms_a_piece": 200.0,
        "piece": "step",
    }  # fmt: skip
    assert found["fast"]["speed"] == 64.0 and found["fast"]["limit"] == 32.0
    here = {
        "processor": "p",
        "cores": 2,
        "load": 0.0,
        "matrix_gflops_a_second": 4.0,
        "torch": "t",
        "commit": "abcdefghi",
    }
    results = {"machine": here, "rows": {"a row": found, "round by N": {"N=10": found["slow"], "N=100": found["fast"]}}}
    assert "| a row | fast (named) | 31.25 | 3.12 ms a step | 64.00 | 3200% |" in table(results)
    plot(tmp_path / "growth.png", json.loads(json.dumps(results)))
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_plain_contenders_take_their_turns_in_a_process_of_their_own() -> None:
    class Other:
        def of_a_turn(self, name: str) -> float:
            return {"plain": 3.0}[name]

    case = Case({"plain": Contender(lambda _: pytest.fail("not here"), plain=True), "ours": Contender(lambda _: None)})
    assert run.measured(case, repeat=2, gflops=1.0, aside=Other())["plain"]["seconds"] == 3.0  # type: ignore[arg-type]
    aside = run.Aside("hyfem matching", cores=1, compiled=False)
    assert 0 < aside.of_a_turn("match") < 60
    aside.end()


def test_every_row_has_a_name_of_its_own() -> None:
    names = [row.name for row in all_rows(2, compiled=True)]
    assert len(names) == len(set(names)) > 15
