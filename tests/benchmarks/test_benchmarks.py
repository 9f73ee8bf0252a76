"""The benchmark's contenders do the same work, and its numbers say what they claim."""

import argparse
import copy
import dataclasses
import importlib
import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks import gpu, method_rows, plain, plain_matching, round_rows, run, workloads
from benchmarks.case import Case, Contender
from benchmarks.rows import all_rows
from benchmarks.table import plot, table
from benchmarks.workloads import Shape
from fedlab_runner.algorithms.matching.pfnm import Neurons, SquaredDistance, match
from fedlab_runner.algorithms.shared.mutual_learning import Learners, mutual_learning, mutual_losses, teacher_weights
from fedlab_runner.executors.loop import Loop
from fedlab_runner.utils.errors import UserError

ALL_AT_ONCE = Shape(clients=6, examples=8, cohort=4, batch=8, side=28)  # one minibatch: its order does not matter


LAID_OUT = partial(plain.train_cohort_lean, prepared=plain.channels_last)


@pytest.mark.parametrize("train", [plain.train_cohort, plain.train_cohort_lean, plain.train_cohort_stacked, LAID_OUT])
def test_the_plain_loops_do_what_the_executors_do(train: Callable[..., dict[str, Tensor]]) -> None:
    build = workloads.cnn if train is LAID_OUT else workloads.mlp
    fed = ALL_AT_ONCE.federation(build)
    work = workloads.work_of(fed)
    y, _ = Loop(compile=False).train(work)
    expected = fed.family.state_dict(y.mean(0))
    found = train(work, build)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
        assert not torch.equal(value, fed.family.state_dict(work.start)[name])


@pytest.mark.parametrize("train", [plain.train_cohort, plain.train_cohort_lean, plain.train_cohort_stacked])
def test_plain_loops_have_the_precision_of_the_work(train: Callable[..., dict[str, Tensor]]) -> None:
    """bfloat16 moves models nearly as float32 does, and not to the bit."""
    found, start = [], {}
    for precision in (torch.bfloat16, torch.float32):
        fed = ALL_AT_ONCE.federation(workloads.mlp, precision=precision)
        start = fed.family.state_dict(workloads.work_of(fed).start)
        found.append(train(workloads.work_of(fed), workloads.mlp))
    for name, mixed in found[0].items():
        whole = found[1][name]
        assert 0 < (mixed - whole).norm() < 0.2 * (whole - start[name]).norm()


def test_the_plain_mutual_learning_does_what_ours_does() -> None:
    fed = ALL_AT_ONCE.federation(workloads.logistic)
    models = torch.stack([fed.family.init(seed) for seed in range(3)])
    modules = [workloads.logistic() for _ in models]
    for module, w in zip(modules, models, strict=True):
        module.load_state_dict(fed.family.state_dict(w))
    before = copy.deepcopy(modules[0].state_dict())
    weights = teacher_weights(torch.ones(3))
    (learnt,) = mutual_learning(
        fed, 0, [Learners(fed.family, models)], 1, lambda z, batch: mutual_losses(z, batch, weights, 0.4, 0.6)
    )
    plain.learn_mutually(workloads.work_of(fed), 0, modules, 0.6)
    for module, w in zip(modules, learnt, strict=True):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(value, fed.family.state_dict(w)[name], rtol=0, atol=1e-6)
    assert not torch.equal(before["1.weight"], modules[0].state_dict()["1.weight"])


SERVER = {"epochs": 3, "lr": 0.01, "batch_size": 500}


@pytest.mark.parametrize(
    ("algorithm", "build", "delay", "own"),
    [
        ("fedavg", workloads.mlp, 0.0, {}),
        ("fedavg", workloads.mlp, 2.0, {}),
        ("fedbuff", workloads.mlp, 0.0, {"buffer_size": 6}),
        ("ca2fl", workloads.mlp, 0.0, {"buffer_size": 6}),
        ("scaffold", workloads.mlp, 0.0, {}),
        *((name, workloads.mlp, 0.0, own) for name, own in round_rows.PENALTIES.items()),
        ("fedcda", workloads.mlp, 0.0, {"memory": 2, "batches": 1, "warmup": 2}),
        ("fedft", workloads.logistic, 2.0, SERVER),  # Adam makes much of gradients that are zero but for rounding
        ("feddle", workloads.mlp, 2.0, SERVER),
    ],
)
def test_plain_rounds_do_what_ours_do(
    algorithm: str, build: Callable[[], nn.Module], delay: float, own: dict[str, Any]
) -> None:
    """Everyone idle trains, in a single minibatch: nothing that is drawn matters."""
    shape = dataclasses.replace(ALL_AT_ONCE, cohort=ALL_AT_ONCE.clients)
    case = round_rows.of_rounds(shape, build, 1, algorithm=algorithm, delay=delay, own=own)
    theirs, ours = (case.contenders[name].call for name in ("plain", "ours"))
    start, steps = shape.federation(build).family.init(workloads.SEED), []
    for round in range(5):
        plainly, here = theirs(round), ours(round)
        assert isinstance(plainly, Tensor) and isinstance(here, Tensor)
        assert (plainly - here).norm() <= 1e-3 * (here - start).norm()
        steps.append(here)
    assert all(not torch.equal(one, other) for one, other in pairwise(steps))


@pytest.mark.parametrize("method", ["fedavg", "feddyn", "scaffold", "apfl", "feddle", "fedlaw", "fedasync"])
def test_a_reference_loop_does_what_ours_does(method: str) -> None:
    """On the same draws, in the precision of a run; test_reference compares the States of all methods in float64."""
    case = method_rows.of_method(method, workloads.logistic, 1, False, ALL_AT_ONCE)
    theirs, ours = (case.contenders[name].call for name in ("plain", "ours"))
    start = ALL_AT_ONCE.federation(workloads.logistic).family.init(workloads.SEED)
    for round in range(3):
        plainly, here = theirs(round)["params"], ours(round)  # type: ignore[index]  # the fields of a State
        assert plainly.dtype == here.dtype == torch.float32
        assert (plainly - here).norm() < 1e-2 * (here - start).norm()


def test_the_plain_matching_is_ours() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=(9, 30))
    rows = [base[rng.permutation(9)[:count]] + 0.1 * rng.normal(size=(count, 30)) for count in (9, 7, 8)]
    clients = [Neurons(torch.from_numpy(each), torch.arange(30), 1.0) for each in rows]
    ours = match(clients, SquaredDistance(1.0), num_columns=30, sweeps=3, rng=rng, limit=24)
    theirs = plain_matching.match(rows, sweeps=3, penalty=1.0)
    place = dict(zip(np.concatenate(ours.assignments), np.concatenate(theirs), strict=True))
    assert len(place) == ours.width == len(set(place.values()))  # the same but for the neurons' names
    assert [[place[i] for i in each] for each in ours.assignments] == [each.tolist() for each in theirs]


def test_the_plain_evaluation_is_ours() -> None:
    fed = ALL_AT_ONCE.federation(workloads.mlp)
    work = workloads.work_of(fed)
    logits = fed.family.predict(work.start, fed.client_data.inputs)
    expected = float((logits.argmax(1) == fed.client_data.targets).float().mean())
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
    results = {"machine": here, "rows": {"a row": found, "round by N=10": found, "round by N=100": found}}
    assert "| a row | fast (named) | 31.25 | 3.12 ms a step | 64.00 | 3200% |" in table(results)
    plot(tmp_path / "growth.png", json.loads(json.dumps(results)))
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_plain_contenders_take_their_turns_in_a_process_of_their_own() -> None:
    class Other:
        def of_a_turn(self, name: str) -> float:
            return {"plain": 3.0}[name]

    case = Case({"plain": Contender(lambda _: pytest.fail("not here"), plain=True), "ours": Contender(lambda _: None)})
    assert run.measured(case, repeat=2, gflops=1.0, aside=Other())["plain"]["seconds"] == 3.0  # type: ignore[arg-type]
    options = argparse.Namespace(cores=1, device="cpu", compiled=False, methods=False)
    aside = run.Aside("hyfem matching", options)
    assert 0 < aside.of_a_turn("plain") < 60
    aside.end()


def test_every_row_has_a_name_of_its_own() -> None:
    kinds = (
        (all_rows(2, compiled=True), 15),
        (gpu.all_rows(True, torch.device("cuda")), 12),
        (method_rows.rows(2, True), 70),
    )
    for rows, least in kinds:
        names = [row.name for row in rows]
        assert len(names) == len(set(names)) > least


def test_the_rows_of_a_gpu_have_its_executors_and_the_plain_loops_of_someone_who_knows_it() -> None:
    """Built on a CPU, where all but the recorded steps can be carried out."""
    rows = {row.name: row for row in gpu.all_rows(compiled=False, device=workloads.CPU)}
    assert "plain, lean, channels last" in rows["local training W2 cnn"].case().contenders
    contenders = rows["local training W2 logistic"].case().contenders
    assert contenders.keys() >= {"plain", "plain, vmap", "plain, lean, compiled", "cohort graph", "auto"}
    assert [name for name, each in contenders.items() if each.plain] == list(contenders)[:4]
    contenders["cohort"].call(0)
    with pytest.raises(UserError, match="needs a GPU"):
        contenders["graph"].call(0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: what it says without one cannot be seen")
def test_a_benchmark_of_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["benchmarks.run", "--device", "cuda"])
        run.main()
    assert "--device cuda: there is no GPU" in capsys.readouterr().err


FOLDER = Path(run.__file__).parent
MODULES = sorted(path.relative_to(FOLDER).with_suffix("").parts for path in FOLDER.glob("**/[a-z]*.py"))


@pytest.mark.parametrize("parts", [parts for parts in MODULES if parts[0] != "peers"], ids=".".join)
def test_every_module_can_be_imported(parts: tuple[str, ...]) -> None:
    """Also those that only work on a GPU, or for hours; the peers' clients need libraries of their own."""
    importlib.import_module(".".join(["benchmarks", *parts]))
