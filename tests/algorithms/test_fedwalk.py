"""FedWalk: identities, edge cases, and the wrapper around every algorithm with
a server.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.algorithms import fedwalk as fedwalk_module
from fedlab_runner.algorithms.fedwalk import FedWalk, log_ratio
from fedlab_runner.algorithms.shared.classifier_head import named_head
from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.config import build as config_build
from fedlab_runner.config.components import Components
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.client_losses import client_losses
from fedlab_runner.core.network_trial import try_network
from fedlab_runner.core.rng import Purpose
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.setup import prepare
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.kinds import by_kind
from tests.helpers.toy import (
    ALGORITHMS,
    EQUAL,
    FEATURES,
    RAGGED,
    algorithm,
    federation,
    mlp,
    normed,
    run,
    server_data,
    tensors,
)

LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 2.0}
BASES = [name for name in ALGORITHMS if isinstance(algorithm(name), ServerAlgorithm)]
LEASH = server_data(70, seed=13, num_classes=4)


def fedwalk(base: Any = "fedavg", **overrides: Any) -> Any:
    return algorithm("fedwalk", base=base, **overrides)


def close(a: Tensor, b: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


# Around every algorithm with a server.


def test_bases_are_discovered() -> None:
    assert {"fedavg", "fedprox", "scaffold", "fedbuff", "fedcda", "feddle"} <= set(BASES)
    assert not {"center", "fedwalk"} & set(BASES)


@pytest.mark.parametrize("name", BASES)
def test_it_leashes_any_algorithm(name: str) -> None:
    fed, built = federation(**LATE), fedwalk(name, tau=math.inf)
    state, leashed = built.init(fed), 0
    for round in range(3):
        state = run(built, fed, 1, first=round, state=state)
        leashed += fed.collect()["algorithm/leashed"]
    assert leashed == 3
    assert not torch.equal(built.models(state), algorithm(name).models(run(algorithm(name), federation(**LATE), 3)))
    assert all(torch.isfinite(t).all() for t in tensors(state) if t.is_floating_point())


@pytest.mark.parametrize("name", by_kind(BASES))
@pytest.mark.parametrize("off", [{"steps": 0, "tau": math.inf}, {"tau": -math.inf}], ids=["steps", "tau"])
def test_without_leash_it_is_the_base_bit_for_bit(name: str, off: dict[str, Any]) -> None:
    """With clients in flight, and everything that the base keeps; an upload has one more value."""
    fed, other = federation(**LATE), federation(**LATE)
    state = run(fedwalk(name, **off), fed, 6)
    base = run(algorithm(name), other, 6)
    assert type(state.base) is type(base) and same(state.base, base)
    mine, theirs = fed.collect(), other.collect()
    assert theirs["late/arrived"] > 0
    more = {"algorithm/leashed", "algorithm/client_loss", "algorithm/log_loss_ratio"}
    different = {key for key in mine if mine[key] != theirs.get(key)} - more
    assert different == {"comm/upload_mb", "cost/server_cache_mb", "cost/client_gflops"}  # clients report their losses
    assert mine["cost/client_gflops"] > theirs["cost/client_gflops"]
    extra = 1e6 / 4 * (mine["comm/upload_mb"] - theirs["comm/upload_mb"])
    assert extra == pytest.approx(theirs["late/arrived"])


@pytest.mark.parametrize("name", BASES)
def test_the_models_of_the_base_can_be_replaced(name: str) -> None:
    built: Any = algorithm(name)
    state = run(built, federation(**LATE), 2)
    other = torch.arange(federation().family.size, dtype=torch.float64)
    replaced = built.with_server_model(state, other)
    assert type(replaced) is type(state) and torch.equal(built.server_model(replaced), other)
    assert torch.equal(built.broadcast(replaced)[0], other), "it is what clients receive"


# The leash.


def written_out(
    fed: Any, start: Tensor, head: Tensor, steps: int, lr: float, batch_size: int, build: Any = None
) -> nn.Module:
    """Plain PyTorch: the model with the leash's classifier, after SGD over the same minibatches."""
    module = (build or mlp)().double()
    module.load_state_dict(fed.family.state_dict(start), strict=False)  # batch norm's counter is in no vector
    body = module[:-1]
    last = nn.Linear(6, 4, dtype=torch.float64)
    named = named_head(fed.family, head)
    last.load_state_dict({key.rpartition(".")[2]: value for key, value in named.items()})
    whole = nn.Sequential(body, last).train()
    optimizer = torch.optim.SGD(whole.parameters(), lr)
    for batch in server_batches(fed, steps, batch_size, data=fed.auxiliary_data, purpose=Purpose.AUXILIARY_BATCHES):
        optimizer.zero_grad()
        F.cross_entropy(whole(batch.inputs), batch.targets).backward()
        optimizer.step()
    return whole.eval()


@pytest.mark.parametrize("build", [None, normed], ids=["mlp", "batch norm"])
def test_a_leashed_round_is_plain_sgd_on_a_shared_body(build: Any) -> None:
    kinds: dict[str, Any] = {"build": build} if build else {}
    fed, other = federation(**kinds), federation(**kinds)
    built = fedwalk(("fedavg", {"weighting": "uniform"}), tau=math.inf, steps=2, batch_size=16, lr=0.3)
    start = built.init(fed)
    after = run(built, fed, 1, state=start)
    averaged: Any = run(algorithm("fedavg", weighting="uniform"), other, 1).params
    whole = written_out(other, averaged, start.head, 2, 0.3, 16, build)
    body, last = whole
    named = fed.family.state_dict(after.base.params)
    last_layer = fed.family.classifier.name if fed.family.classifier else ""
    for key, value in body.state_dict().items():
        if key in named:
            close(named[key], value)
    close(after.head, torch.cat([last.weight.flatten(), last.bias]).detach())
    mine = fed.family.segments(last_layer)
    assert torch.equal(after.base.params[mine], averaged[mine]), "the clients' classifier is left alone"
    assert not torch.equal(after.base.params[~mine], averaged[~mine])
    loss = F.cross_entropy(whole(LEASH.inputs), LEASH.targets)
    assert after.leash_loss == pytest.approx(float(loss.detach()), abs=1e-10) == fed.collect()["algorithm/leash_loss"]


def test_statistics_of_batch_norm_may_stay_the_clients() -> None:
    fed = federation(build=normed)
    p = fed.family.num_params
    moved, kept = (run(fedwalk(tau=math.inf, move_statistics=m), federation(build=normed), 1) for m in (True, False))
    base: Any = run(algorithm("fedavg"), fed, 1)
    assert torch.equal(kept.base.params[p:], base.params[p:]) and not torch.equal(
        moved.base.params[p:], base.params[p:]
    )
    assert torch.equal(kept.base.params[:p], moved.base.params[:p])


def test_steps_or_epochs() -> None:
    """Five minibatches of 16 are an epoch over 70 examples."""
    one, other = (run(fedwalk(tau=math.inf, batch_size=16, steps=n, unit=u), federation(), 1)
                  for n, u in ((1, "epoch"), (5, "step")))  # fmt: skip
    assert same(one, other)
    fewer = run(fedwalk(tau=math.inf, batch_size=16, steps=4, unit="step"), federation(), 1)
    assert not same(one, fewer)


def test_the_leash_follows_the_clients_learning_rate() -> None:
    fed = federation()
    built = fedwalk(tau=math.inf)
    state = built.init(fed)
    fed.begin(0, 1e-300)
    assert torch.equal(built.round(state, fed).head, state.head)


# The log loss ratio.


@pytest.mark.parametrize(
    ("losses", "ratio"),
    [
        ((2.0, 1.0), 1.0),
        ((1.0, 8.0), -3.0),
        ((1.0, math.inf), -math.inf),  # before the first leash update
        ((0.0, 1.0), -math.inf),
        ((0.0, math.inf), -math.inf),
        ((1.0, 0.0), math.inf),
        ((0.0, 0.0), math.inf),
    ],
)
def test_the_ratio_and_its_limits(losses: tuple[float, float], ratio: float) -> None:
    assert log_ratio(*losses) == ratio


def test_the_threshold_is_strict() -> None:
    """A ratio of exactly tau: no leash; a little more and there is one."""
    built = fedwalk(tau=math.inf)
    first = run(built, federation(**LATE), 1)
    fed = federation(**LATE)
    run(built, fed, 1)
    run(built, fed, 1, first=1, state=first)
    ratio = fed.collect()["algorithm/log_loss_ratio"]
    for tau, leashed in ((ratio, 0), (math.nextafter(ratio, math.inf), 1)):
        fed = federation(**LATE)
        run(built, fed, 1)
        run(fedwalk(tau=tau), fed, 1, first=1, state=first)
        assert fed.collect()["algorithm/leashed"] == leashed


def test_a_leash_that_is_learned_well_enough_is_dropped_and_its_loss_stays() -> None:
    fed, built = federation(**LATE), fedwalk(tau=-1.5)
    state, seen = built.init(fed), []
    for round in range(12):
        before = state
        state = run(built, fed, 1, first=round, state=state)
        metrics = fed.collect()
        seen.append(metrics["algorithm/leashed"])
        expected = log_ratio(state.client_loss, before.leash_loss) < -1.5
        assert metrics["algorithm/leashed"] == expected
        if not expected:
            assert state.leash_loss == before.leash_loss and torch.equal(state.head, before.head)
    assert seen[0] == 1 and 0 in seen


def test_the_leash_loss_is_the_mean_over_all_auxiliary_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedwalk_module, "EXAMPLES_PER_CALL", 30)
    fed = federation(**LATE)
    state = run(fedwalk(tau=math.inf), fed, 1)
    data, family, x = fed.auxiliary_data, fed.family, state.base.params
    assert data is not None and len(data) % 30
    inputs = family.normalize(data.inputs, family.dtype)
    logits = family.evaluate(x[: family.num_params], x[family.num_params :], inputs, named_head(family, state.head))
    assert state.leash_loss == pytest.approx(float(F.cross_entropy(logits, data.targets)))


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("std", [0.0, 2.0])
def test_the_clients_loss_is_that_of_their_trained_models(beta: float, std: float) -> None:
    """Uniform over those that arrive, late ones with the loss that they had when they trained, smoothed from zero."""
    kinds = LATE | {"std": std}
    fed, other, expected = federation(**kinds), federation(**kinds), 0.0
    built: Any = fedwalk(tau=-math.inf, beta=beta)
    state = built.init(fed)
    sent: dict[int, dict[int, float]] = {}
    for round in range(8):
        other.begin(round, 1.0)
        x = state.base.params
        cohort = other.start_cohort((x,))
        for n, due, y in zip(cohort.client_ids.tolist(), cohort.due.tolist(), cohort.train(x), strict=True):
            mine = other.client_data.members(n)
            logits = other.family.predict(y, other.client_data.inputs[mine])
            loss = F.cross_entropy(logits, other.client_data.targets[mine])
            sent.setdefault(due, {})[n] = float(loss)
        state = run(built, fed, 1, first=round, state=state)
        if arrived := sent.pop(round, {}):
            expected = beta * expected + (1 - beta) * sum(arrived.values()) / len(arrived)
        assert state.client_loss == pytest.approx(expected, abs=1e-12)
        assert fed.collect()["algorithm/client_loss"] == state.client_loss
    assert expected > 0


def test_a_learning_rate_of_zero_changes_only_the_leash_loss() -> None:
    fed = federation(**LATE)
    state = run(fedwalk(tau=math.inf, lr=0.0), fed, 5)
    off = run(fedwalk(tau=-math.inf), federation(**LATE), 5)
    assert same(state, off) and state.client_loss == off.client_loss
    assert off.leash_loss == math.inf and math.isfinite(state.leash_loss)


@pytest.mark.parametrize("build", [None, normed])
def test_losses_of_clients_are_those_of_one_after_another(build: Any) -> None:
    fed = federation([1, 250, 7, 100, 101, 3] * 3, **({"build": build} if build else {}))
    rng, client_data = np.random.default_rng(0), fed.client_data
    ids = rng.permutation(18)[:15]
    models = torch.stack([fed.family.init(seed) for seed in range(15)])
    losses = client_losses(fed.family, client_data, ids, models)
    for n, w, loss in zip(ids.tolist(), models, losses, strict=True):
        mine = client_data.members(n)
        logits = fed.family.predict(w, client_data.inputs[mine])
        assert float(F.cross_entropy(logits, client_data.targets[mine])) == pytest.approx(float(loss), abs=1e-12)


# Before the rounds instead of in them.


def test_pre_training_is_the_leash_of_all_rounds_at_once_then_the_base() -> None:
    fed, built = federation(**LATE), fedwalk(pretrain=3, steps=2, batch_size=16, lr=0.2)
    start = built.init(fed)
    state = run(built, fed, 1, state=start)
    other = federation(**LATE)
    other.begin(0, 1.0)
    whole = written_out(other, start.base.params, start.head, 6, 0.2, 16)
    named = {f"{i}.{key}": value for i, layer in enumerate(whole[0]) for key, value in layer.state_dict().items()}
    leashed = other.family.state_dict(start.base.params) | named
    module = other.family.module
    module.load_state_dict(leashed)
    base: Any = algorithm("fedavg")
    expected = base.round(base.with_server_model(start.base, other.family.vector(module)), other)
    close(state.base.params, expected.params)
    assert fed.collect()["algorithm/leashed"] == 0 and state.leash_loss == math.inf
    again = run(built, fed, 2, first=1, state=state)
    for round in (1, 2):
        other.begin(round, 1.0)
        expected = base.round(expected, other)
    close(again.base.params, expected.params)
    assert torch.equal(again.head, state.head)


# Resuming, executors, costs.


@pytest.mark.parametrize("name", ["scaffold", "fedbuff", "feddle", "fedcda"])
def test_it_resumes_bit_for_bit_around_algorithms_that_remember(name: str) -> None:
    kinds = LATE | {"build": normed}
    built, fed, saved = fedwalk(name, tau=0.0), federation(**kinds), []
    state = built.init(fed)
    for round in range(6):
        saved.append(pack({"state": state, "fed": fed.state_dict()}))
        state = run(built, fed, 1, first=round, state=state)
    for round, checkpoint in enumerate(saved):
        again = federation(**kinds)
        resumed = unpack(checkpoint["state"], like=built.init(again))
        again.load_state_dict(checkpoint["fed"])
        resumed = run(built, again, 6 - round, first=round, state=resumed)
        assert same(resumed, state) and again.collect() == fed.collect()
        assert (resumed.client_loss, resumed.leash_loss) == (state.client_loss, state.leash_loss)


def test_executors_agree_about_the_losses() -> None:
    one = run(fedwalk("scaffold", tau=0.0), federation(**LATE), 6)
    other = run(fedwalk("scaffold", tau=0.0), federation(**LATE, executor=Vectorized(2, compile=False)), 6)
    close(one.base.params, other.base.params, 1e-8)
    assert one.client_loss == pytest.approx(other.client_loss, abs=1e-8)
    assert one.leash_loss == pytest.approx(other.leash_loss, abs=1e-8)


def test_the_payload_is_the_bases_and_a_loss() -> None:
    fed = federation(EQUAL, build=normed)
    run(fedwalk(tau=math.inf), fed, 1)
    size, metrics = fed.family.size, fed.collect()
    assert metrics["comm/download_mb"] == pytest.approx(4 * size * 4 / 1e6)
    assert metrics["comm/upload_mb"] == pytest.approx(4 * (size + 1) * 4 / 1e6)
    assert metrics["cost/server_cache_mb"] == pytest.approx((6 + 1) * 4 * 4 / 1e6), "the head of four classes"
    forward = 2 * (FEATURES * 6 + 6 * 4)  # with the head; a step has two gradients behind it and one before it
    step, averaging = 3 * forward - 2 * FEATURES * 6, 2 * 4 * size
    assert metrics["cost/server_gflops"] == pytest.approx((averaging + 70 * (step + forward)) / 1e9)


@pytest.mark.parametrize("base", ["scaffold", "ditto", "apfl"])
def test_the_cost_of_the_losses_is_one_pass_however_often_clients_train(base: str) -> None:
    """`scaffold` makes a second pass for its gradient, the others train a second model."""
    costs = []
    for name in ("fedavg", base):
        feds = [federation(EQUAL) for _ in range(2)]
        run(algorithm(name), feds[0], 1)
        run(fedwalk(base=name), feds[1], 1)
        alone, leashed = (fed.collect()["cost/client_gflops"] for fed in feds)
        costs.append(leashed - alone)
    assert costs[1] == pytest.approx(costs[0], rel=1e-9) and costs[0] > 0


def test_only_a_wrapper_asks_clients_for_their_loss() -> None:
    fed = federation(**LATE)
    run(algorithm("fedavg"), fed, 3)
    assert not fed.trainer.losses_reported and fed.arrived_losses == []


def test_a_single_example_on_a_client_and_none_that_report() -> None:
    assert math.isfinite(run(fedwalk(tau=math.inf), federation([1], build=normed), 2).client_loss)
    fed = federation(RAGGED, std=1e6)
    state = run(fedwalk(), fed, 2)
    assert state.client_loss == 0 and fed.collect()["algorithm/leashed"] == 1, "the server may train all the same"


# What is refused, and where the leash data come from.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beta": 1.0}, r"beta must be in \[0, 1\), got 1\.0"),
        ({"unit": "round"}, "unit must be one of epoch, step, got round"),
        ({"lr": -1.0}, r"lr must be >= 0, got -1\.0"),
        ({"steps": -1}, "steps must be >= 0, got -1"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"pretrain": -1}, "pretrain must be >= 0, got -1"),
    ],
)
def test_wrong_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        fedwalk(**fields)


def test_a_model_without_a_body_is_refused() -> None:
    fed = federation(build=lambda: nn.Sequential(nn.Linear(FEATURES, 3)))
    with pytest.raises(UserError, match=r"^algorithm=fedwalk needs a model with a body before [^\n]*$"):
        fedwalk().check(fed)


@pytest.mark.parametrize("classes", [3, 4])
def test_layers_behind_the_classifier_must_take_the_auxiliary_classes(classes: int) -> None:
    last = nn.Linear(6, 3), nn.LayerNorm(3, elementwise_affine=False)
    fed = federation(
        build=lambda: nn.Sequential(nn.Linear(FEATURES, 6), *last), leash=server_data(9, num_classes=classes)
    )
    try_network(fed.family, fed.client_data.inputs)
    if classes == 3:
        run(fedwalk(), fed, 1)
        return
    with pytest.raises(UserError, match=r"^algorithm=fedwalk needs layers behind the classifier 1 .* 4 classes[^\n]*$"):
        fedwalk().check(fed)


def build(*overrides: str) -> Components:
    return config_build.build(composed("algorithm=fedwalk", "model=mlp", *overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [],
            r"^algorithm=fedwalk needs auxiliary examples on the server: add server_data@auxiliary_data=tiny_imagenet",
        ),
        (
            ["algorithm@algorithm.base=fedprox", "algorithm.base.mu=-1"],
            r"^algorithm\.base\.mu must be >= 0, got -1\.0$",
        ),
        (
            ["algorithm@algorithm.base=fedprox", "algorithm.base.mu=x"],
            r"^algorithm\.base\.mu must be a number, got 'x'$",
        ),
        (["+algorithm.base.mu=1"], r"^algorithm\.base\.mu is not a key: algorithm\.base has late_policy, weighting, "),
        (
            ["algorithm@algorithm.base=center"],
            r"^algorithm\.base\._target_ must be of the kind ServerAlgorithm .*, got '.*Center'$",
        ),
        (["algorithm.base=scaffold"], r"^algorithm\.base must be a choice: <group>@algorithm\.base=<name>, got 'sc"),
        (
            ["algorithm@algorithm.base=fedwalk", "server_data@auxiliary_data=in_domain"],
            r"^algorithm\.base\._target_ must be of the kind .*FedWalk'$",
        ),
        (
            ["algorithm@algorithm.base=feddle", "server_data=none", "server_data@auxiliary_data=in_domain"],
            r"^algorithm@algorithm\.base=feddle needs examples on the server: add server_data=in_domain ",
        ),
        (
            ["algorithm@algorithm.base=scaffold", "local=adam", "server_data@auxiliary_data=in_domain"],
            r"^option 2 of algorithm@algorithm\.base=scaffold .* use local=sgd, or algorithm\.base\.option=1$",
        ),
        (
            [
                *("algorithm@algorithm.base=fedcda", "algorithm.base.batches=1", "participation.cohort_size=12"),
                *("algorithm.base.memory=4", "server_data@auxiliary_data=in_domain"),
            ],
            r"^algorithm\.base\.batches must be >= 2 for 12 clients a round, got 1: 4\^12 combinations a batch",
        ),
        (
            ["server_data@auxiliary_data=image_folder", "auxiliary_data.root=/nowhere"],
            r"^auxiliary_data\.root must be a folder of one folder a class, got /nowhere, which does not exist$",
        ),
        (
            ["server_data=none", "server_data@auxiliary_data=in_domain", "auxiliary_data.size=359"],
            r"^auxiliary_data\.size must leave some of the test set's 359 examples, got 359$",
        ),
    ],
)
def test_a_config_that_cannot_be_is_one_line_that_names_the_key(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        prepare(build(*overrides))
    assert len(str(error.value).splitlines()) == 1


def test_its_name_says_what_it_is_around() -> None:
    name = config_build.run_id(composed("algorithm=fedwalk", "algorithm@algorithm.base=scaffold"))
    assert name.startswith("fedwalk-scaffold-") and len(name) == len("fedwalk-scaffold-") + 8
    moved = config_build.run_id(composed("algorithm=fedwalk", "algorithm@algorithm.base=scaffold", "algorithm.tau=0"))
    assert moved != name


def test_server_and_auxiliary_data_are_two_things() -> None:
    fed = prepare(
        build(
            "server_data=in_domain",
            "server_data.size=50",
            "server_data@auxiliary_data=in_domain",
            "auxiliary_data.size=60",
        )
    ).simulation
    mine, leash = fed.fed.server_data, fed.fed.auxiliary_data
    assert mine is not None and leash is not None and (len(mine), len(leash), len(fed.test.targets)) == (50, 60, 249)
    rows = [{tuple(row) for row in data.inputs.flatten(1).tolist()} for data in (mine, leash, fed.test)]
    assert not (rows[0] & rows[1] or rows[0] & rows[2] or rows[1] & rows[2])


def test_infinite_thresholds_can_be_typed() -> None:
    built = [build(f"algorithm.tau={text}").algorithm for text in ("-inf", "inf")]
    assert all(isinstance(each, FedWalk) for each in built)
    assert [each.tau for each in built] == [-math.inf, math.inf]


def test_what_is_evaluated_is_what_the_base_evaluates() -> None:
    """FedExP's mean of the last two models, where the leash acts on the last one."""
    built: Any = algorithm("fedwalk", base="fedexp", tau=-float("inf"))
    state = run(built, federation(), 2)
    assert torch.equal(built.models(state), (state.base.params + state.base.previous) / 2)
    assert not torch.equal(built.models(state), state.base.params)
