"""A server optimiser acts on the steps of every algorithm with a server, and on nothing else."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.config.build import build
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.server_steps import ServerSteps
from fedlab_runner.experiment.loop import Simulation, Snapshot
from fedlab_runner.experiment.resource_estimate import expected_bytes
from fedlab_runner.lr_schedules.constant import ConstantLR
from fedlab_runner.server_optimizers.base import ServerOptimizer
from fedlab_runner.server_optimizers.none import NoServerOptimizer
from fedlab_runner.utils.errors import Diverged, UserError
from tests.helpers.composed import composed
from tests.helpers.kinds import by_kind, in_turns
from tests.helpers.paths import ROOT
from tests.helpers.toy import (
    ALGORITHMS,
    RAGGED,
    SERVER_OPTIMIZERS,
    algorithm,
    federation,
    few_rounds,
    home,
    local,
    normed,
    run,
    server_optimizer,
    tensors,
)

STEPPING = [name for name in ALGORITHMS if algorithm(name).makes_server_steps]
OTHERS = sorted(set(ALGORITHMS) - set(STEPPING))
ACTING = [name for name in SERVER_OPTIMIZERS if server_optimizer(name).acts]
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8], "cohort": 3, "std": 2.0, "build": normed}
KEYS: dict[str, dict[str, Any]] = {"fedbuff": {"buffer_size": 2}, "ca2fl": {"buffer_size": 2}, "fedcda": {"warmup": 1}}
ROUNDS = 4


@dataclass(frozen=True)
class Step:
    """A step that an algorithm made, and what came of it."""

    before: Tensor
    after: Tensor
    taken: Tensor


def built(name: str) -> Any:
    return few_rounds(name, **KEYS.get(name, {}))


def watched(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """All steps that will go through the federation's optimiser."""
    steps: list[Step] = []
    optimized = fed.optimized

    def note(before: Tensor, after: Tensor) -> Tensor:
        steps.append(Step(before.clone(), after.clone(), optimized(before, after)))
        return steps[-1].taken

    monkeypatch.setattr(fed, "optimized", note)
    return steps


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


@pytest.mark.parametrize(("name", "optimizer"), in_turns(STEPPING, ACTING))
def test_only_parameters_follow_the_optimiser_and_a_run_resumes_to_the_same_bits(
    name: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With late clients and batch norm: statistics stay as the algorithm left them; no step of the algorithm is none of
    the optimiser; the server's model is what the optimiser gave (the leash of FedWalk moves it again).
    """
    fed = federation(**LATE, optimizer=server_optimizer(optimizer))
    steps, method, p = watched(fed, monkeypatch), built(name), fed.family.num_params
    state, moved = method.init(fed), 0
    saved: dict[str, Any] = {}
    for round in range(ROUNDS):
        if round == ROUNDS // 2:
            saved = pack({"state": state, "fed": fed.state_dict()})
        moments = fed.state_dict()["server_steps"]
        state, begun = run(method, fed, 1, first=round, state=state), len(steps)
        for step in steps:
            still = torch.equal(step.before[:p], step.after[:p])
            assert torch.equal(step.taken[p:], step.after[p:])
            assert torch.equal(step.taken[:p], step.before[:p]) <= still
            moved += not still
        if all(torch.equal(step.before[:p], step.after[:p]) for step in steps):
            assert same(fed.state_dict()["server_steps"]["moments"], moments["moments"])
        if begun and name != "fedwalk":
            assert torch.equal(method.server_model(state), steps[-1].taken)
        steps.clear()
    assert moved and fed.state_dict()["server_steps"]["count"] == moved

    again = federation(**LATE, optimizer=server_optimizer(optimizer))
    other = unpack(saved["state"], like=built(name).init(again))
    again.load_state_dict(saved["fed"])
    other = run(built(name), again, ROUNDS - ROUNDS // 2, first=ROUNDS // 2, state=other)
    assert same(state, other) and fed.collect() == again.collect()
    assert same(fed.state_dict()["server_steps"]["moments"], again.state_dict()["server_steps"]["moments"])


@pytest.mark.parametrize(
    ("name", "optimizer"), in_turns([name for name in STEPPING if algorithm(name).home_fault() is None], ACTING)
)
def test_values_at_home_stay_in_the_servers_model_as_the_algorithm_leaves_them(
    name: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weight decay does not shrink them: FedBABU's head is the same random head always."""
    fed = federation(**LATE, optimizer=server_optimizer(optimizer), home=home("norm"))
    steps, at_home = watched(fed, monkeypatch), fed.home.mask(fed.family)
    run(built(name), fed, ROUNDS)
    assert any(not torch.equal(step.before, step.after) for step in steps)
    assert all(torch.equal(step.taken[at_home], step.after[at_home]) for step in steps)


@pytest.mark.parametrize("name", by_kind(STEPPING))
def test_sgd_with_lr_1_and_without_momentum_is_no_optimiser_and_none_is_off_to_the_bit(name: str) -> None:
    plain, off, sgd = (
        run(built(name), federation(**LATE, optimizer=each), ROUNDS)
        for each in (None, NoServerOptimizer(), server_optimizer("sgd", momentum=0.0))
    )
    assert same(plain, off)
    for one, other in zip(tensors(plain), tensors(sgd), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", by_kind(STEPPING))
def test_it_makes_a_difference_and_costs_memory_and_operations(name: str) -> None:
    plain, fed = (federation(**LATE, optimizer=each) for each in (None, server_optimizer("adam")))
    method = built(name)
    one, other = run(method, plain, ROUNDS), run(method, fed, ROUNDS)
    assert not torch.allclose(tensors(method.models(one))[0], tensors(method.models(other))[0], rtol=0, atol=1e-6)
    values = 2 * fed.family.num_params
    cache = fed.collect()["cost/server_cache_mb"] - plain.collect()["cost/server_cache_mb"]
    if name != "fedcda":  # which caches other models then
        assert cache == pytest.approx(4 * values / 1e6)
    assert expected_bytes(method, fed, ROUNDS) - expected_bytes(method, plain, ROUNDS) == 2 * 8 * values


def test_operations_are_counted_once_for_each_step() -> None:
    fed, plain = (federation(optimizer=each) for each in (server_optimizer("yogi"), None))
    gflops = [
        float(run(algorithm("fedavg"), each, 1) and each.collect()["cost/server_gflops"]) for each in (fed, plain)
    ]
    assert gflops[0] - gflops[1] == pytest.approx(12 * fed.family.num_params / 1e9)


def test_steps_are_counted_from_the_first_one_on_also_after_a_resume() -> None:
    """As torch's Adam, whose bias correction counts them; statistics that move alone are no step."""
    x, lr, p = torch.tensor([1.0, -2.0, 3.0, 5.0]), 0.1, 3
    theirs = torch.nn.Parameter(x[:p].clone())
    adam = torch.optim.Adam([theirs], lr=lr, betas=(0.8, 0.9), eps=0.01)
    rule = server_optimizer("adam", lr=lr, beta1=0.8, beta2=0.9, tau=0.01, initial=0.0, bias_correction="adam")
    steps = ServerSteps(rule, p, x.dtype)
    for round in range(4):
        theirs.grad = -torch.tensor([0.3, -0.1, 2.0 - round])
        adam.step()
        x = steps.take(x, torch.cat([x[:p] - theirs.grad, x[p:] + 1]))
        torch.testing.assert_close(x[:p], theirs.detach(), rtol=0, atol=1e-6)
        moved = x + torch.tensor([0.0, 0.0, 0.0, 1.0])
        assert steps.take(x, moved) is moved
        saved, steps = steps.state_dict(), ServerSteps(rule, p, x.dtype)
        steps.load_state_dict(saved)


def test_an_algorithm_with_several_steps_in_a_round_has_the_optimiser_at_each() -> None:
    fed = federation(optimizer=server_optimizer("sgd"))
    run(algorithm("fedbuff", buffer_size=2), fed, 1)
    assert fed.state_dict()["server_steps"]["count"] == len(RAGGED) // 2
    fed = federation(optimizer=server_optimizer("sgd"))
    run(algorithm("fedasync"), fed, 1)
    assert fed.state_dict()["server_steps"]["count"] == len(RAGGED)


def test_a_base_takes_it_and_the_leash_does_not() -> None:
    """Without leash updates FedWalk around FedAvg is FedAvg with the same optimiser."""
    walked = run(algorithm("fedwalk", steps=0), federation(optimizer=server_optimizer("yogi")), 5)
    plain = run(algorithm("fedavg"), federation(optimizer=server_optimizer("yogi")), 5)
    assert torch.equal(walked.base.params, plain.params)
    fed = federation(optimizer=server_optimizer("yogi"))
    leashed = run(algorithm("fedwalk", tau=100.0, steps=2), fed, 5)
    assert fed.state_dict()["server_steps"]["count"] == 5 and not torch.equal(leashed.base.params, plain.params)


def test_it_is_the_readmes_fedavgm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (ROOT / "README.md").read_text().split("<!-- file: fedlab_runner/algorithms/fedavgm.py -->\n```python\n")[1]
    (tmp_path / "shown_fedavgm.py").write_text(code.split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    shown: Any = __import__("shown_fedavgm")
    try:
        taught = run(shown.FedAvgM(beta=0.8), federation(**LATE), 6)
    finally:
        sys.modules.pop("shown_fedavgm")
    fed = federation(**LATE, optimizer=server_optimizer("sgd", momentum=0.8))
    mine = run(algorithm("fedavg"), fed, 6)
    torch.testing.assert_close(mine.params, taught.params, rtol=0, atol=1e-12)
    torch.testing.assert_close(fed.state_dict()["server_steps"]["moments"][0], taught.velocity, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_algorithms_without_a_server_refuse_it_in_one_line(name: str) -> None:
    with pytest.raises(UserError, match=rf"^server_optimizer must be none with algorithm={name}, [^\n]*$"):
        build(composed(f"algorithm={name}", "server_optimizer=adam"))
    build(composed(f"algorithm={name}", "server_optimizer=none"))


@pytest.mark.parametrize("keys", [{"layerwise": True, "late_policy": "discard"}, {"first_models": "own"}])
def test_fedma_refuses_it_where_neurons_move(keys: dict[str, Any]) -> None:
    built: Any = algorithm("fedma", **keys)
    built.check(federation())
    with pytest.raises(UserError, match=r"^server_optimizer must be none with algorithm=fedma where [^\n]*$"):
        built.check(federation(optimizer=server_optimizer("adam")))


def test_moments_of_another_optimiser_are_refused() -> None:
    fed = federation(optimizer=server_optimizer("adam"))
    run(algorithm("fedavg"), fed, 2)
    saved = pack(fed.state_dict())
    for other in (None, server_optimizer("sgd")):
        with pytest.raises(ValueError, match="the server optimiser's moments are of another number"):
            federation(optimizer=other).load_state_dict(saved)
    with pytest.raises(ValueError, match="type or size"):
        federation(build=normed, optimizer=server_optimizer("adam")).load_state_dict(saved)


def test_a_run_that_diverges_names_the_optimisers_learning_rate() -> None:
    optimizer = server_optimizer("sgd")
    object.__setattr__(optimizer, "lr", 1e308)  # a config has none so large
    fed = federation(training=local(lr=100.0), optimizer=optimizer)
    built, unused = algorithm("fedavg"), cast(Any, None)
    simulation = Simulation(built, fed, unused, unused, unused, ConstantLR(), 3, "")
    now = Snapshot(0, built.init(fed), fed.state_dict(), None)
    with pytest.raises(Diverged, match=r"lower local.lr or server_optimizer.lr, or set local.clip_norm, "):
        for round in range(3):
            now = Snapshot(round + 1, simulation._round(now, simulation.algorithm.round)[0], fed.state_dict(), None)


@dataclass(frozen=True)
class Own(ServerOptimizer):
    """An optimiser whose methods give what a test says."""

    of_init: Any
    of_step: Any
    operations: ClassVar[int] = 1

    def init(self, x: Tensor) -> Any:
        return self.of_init(x)

    def step(self, x: Tensor, delta: Tensor, moments: Any, t: int) -> Any:
        return self.of_step(x, delta, moments)


def zeros(x: Tensor) -> tuple[Tensor]:
    return (torch.zeros_like(x),)


@pytest.mark.parametrize(
    ("init", "step", "line"),
    [
        (torch.zeros_like, lambda x, d, m: (x + d, m), r"Own\.init must give a tuple of tensors, got torch float64"),
        (zeros, lambda x, d, m: x + d, r"Own\.step must give a pair: .*, got torch float64"),
        (zeros, lambda x, d, m: (x + d, m[0]), r"Own\.step must give a pair: .*, got a tuple of 2"),
        (zeros, lambda x, d, m: ((x + d)[1:], m), r"Own\.step must give as parameters a tensor like x, \[\d+\] torch"),
        (zeros, lambda x, d, m: ((x + d).float(), m), r"Own\.step must give as parameters .*, got torch float32"),
        (zeros, lambda x, d, m: (x + d, m + m), r"Own\.step must give 1 moments of the shapes .*, got a tuple of 2"),
        (zeros, lambda x, d, m: (x + d, (m[0][1:],)), r"Own\.step must give 1 moments of the shapes"),
        (zeros, lambda x, d, m: (x + d, (0.9,)), r"Own\.step must give 1 moments of the shapes"),
        (zeros, lambda x, d, m: (x.add_(d), m), r"Own\.step writes into x or the moments, which the run"),
        (zeros, lambda x, d, m: (x + m[0].add_(d), m), r"Own\.step writes into x or the moments, which the run"),
    ],
)
def test_an_own_optimiser_keeps_its_contract_from_the_first_step_on(init: Any, step: Any, line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}"):
        run(algorithm("fedavg"), federation(optimizer=Own(init, step)), 1)
