"""Identities of the methods with server data and of CA2FL: 7.5, 7.9, 7.10, 7.13 and 7.20 of `algorithms.md`, and edge
cases of its section 6.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import LATE_POLICIES, ModelUpdate, Update
from fedlab_runner.algorithms.shared.server_training import server_batches, train_as_client, train_on_server
from fedlab_runner.core.updates import Updates
from tests.helpers.toy import EQUAL, FEATURES, RAGGED, algorithm, federation, local, normed, run, server_data

LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 2.0}
OUT_OF_DOMAIN = server_data(60, num_classes=4)


def close(a: Tensor, b: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def arrivals(rows: Tensor, ids: list[int], staleness: list[int] | None = None) -> Updates[Any]:
    ages = torch.tensor(staleness or [0] * len(ids))
    return Updates(Update(rows, rows[:, :0]), torch.tensor(ids), torch.ones(len(ids), dtype=torch.int64), ages)


def params(name: str, rounds: int = 3, fed: dict[str, Any] | None = None, **overrides: Any) -> Tensor:
    built = algorithm(name, **overrides)
    return built.models(run(built, federation(**(fed or {})), rounds))


# CA2FL.


def test_7_10_the_first_step_is_fedbuffs() -> None:
    size = len(RAGGED)
    close(params("ca2fl", 1, buffer_size=size, server_lr=0.7), params("fedbuff", 1, buffer_size=size, server_lr=0.7))
    assert not torch.allclose(params("ca2fl", 2, buffer_size=3), params("fedbuff", 2, buffer_size=3))


@pytest.mark.parametrize("build", [None, normed])
def test_7_10_with_a_buffer_of_all_clients_it_is_uniform_fedavg(build: Any) -> None:
    """v = mean Delta for any h, when each client is in the buffer once."""
    fed = {"build": build} if build else {}
    close(params("ca2fl", 4, fed, buffer_size=len(RAGGED)), params("fedavg", 4, fed, weighting="uniform"))


@pytest.mark.parametrize("buffer_size", [1, 2, 5])
def test_7_10_h_is_the_mean_of_all_clients(buffer_size: int) -> None:
    """Of their updates when the buffer was last emptied; what has come since is in the buffer."""
    fed = federation(**LATE)
    built: Any = algorithm("ca2fl", buffer_size=buffer_size)
    state = built.init(fed)
    for round in range(12):
        state = run(built, fed, 1, first=round, state=state)
        total = torch.stack([*state.h_i.values(), torch.zeros_like(state.h)]).sum(0)
        close(state.h + state.buffer / fed.num_clients, total / fed.num_clients)
    assert 3 < len(state.h_i) <= fed.num_clients and state.h.abs().sum() > 0


def test_ca2fl_calibrates_each_update_by_its_clients_last_one() -> None:
    """Written out for N = 4, M = 2; client 1 comes twice in the second buffer: its second change is from its first."""
    fed, built = federation([4] * 4), algorithm("ca2fl", buffer_size=2, server_lr=0.5)
    state: Any = built.init(fed)._replace(params=torch.zeros(2), h=torch.zeros(2), buffer=torch.zeros(2))
    rows = torch.tensor([[4.0, 0.0], [0.0, 8.0], [2.0, 2.0], [6.0, 6.0], [1.0, 0.0]])
    state = built.server_step(state, arrivals(rows[:2], [0, 1]), fed)  # type: ignore[attr-defined]
    assert state.params.tolist() == [1.0, 2.0] and state.h.tolist() == [1.0, 2.0]
    state = built.server_step(state, arrivals(rows[2:], [1, 1, 2]), fed)  # type: ignore[attr-defined]
    # buffer: (2, 2) - (0, 8) + (6, 6) - (2, 2) = (6, -2); v = (1, 2) + (3, -1)
    assert state.params.tolist() == [1 + 0.5 * 4, 2 + 0.5 * 1]
    assert state.h.tolist() == [1 + 6 / 4, 2 - 2 / 4]
    assert (state.buffered, state.buffer.tolist(), state.h_i[1].tolist()) == (1, [1.0, 0.0], [6.0, 6.0])


def test_ca2fl_divides_by_all_clients_however_few_are_known() -> None:
    fed = federation([4] * 10, participation=None, cohort=1)
    state: Any = run(algorithm("ca2fl", buffer_size=1), fed, 1)
    assert len(state.h_i) == 1
    close(state.h, next(iter(state.h_i.values())) / 10)


def test_ca2fl_keeps_one_update_for_each_client() -> None:
    fed = federation(EQUAL)
    run(algorithm("ca2fl", buffer_size=3), fed, 2)
    values = fed.collect()["cost/server_cache_mb"] * 1e6 / 4
    assert values == pytest.approx((len(EQUAL) + 2) * fed.family.size), "h_i, h and the buffer"


# HFCL.


def test_7_13_hfcl_without_examples_is_fedavg() -> None:
    for policy in LATE_POLICIES:
        mine = params("hfcl", 4, LATE | {"server": server_data(0)}, late_policy=policy)
        close(mine, params("fedavg", 4, LATE, late_policy=policy))


@pytest.mark.parametrize("policy", LATE_POLICIES)
def test_hfcl_is_fedavg_with_one_more_client(policy: str) -> None:
    """The server's examples as a client's own give the same model, on full batches and without delay."""
    training = local(batch_size=100)
    fed = federation([8, 20], training=training, server=server_data(40))
    assert fed.server_data is not None
    mine = run(algorithm("hfcl", late_policy=policy), fed, 3).params
    other = federation([8, 20, 40], training=training)
    other.client_data.inputs[:28], other.client_data.targets[:28] = fed.client_data.inputs, fed.client_data.targets
    other.client_data.inputs[28:], other.client_data.targets[28:] = fed.server_data.inputs, fed.server_data.targets
    close(mine, run(algorithm("fedavg"), other, 3).params)


def test_hfcl_moves_by_the_server_alone_when_nobody_reports() -> None:
    fed = federation([8, 8], std=1e6)
    state = run(algorithm("hfcl"), fed, 1)
    close(state.params, train_as_client(fed, fed.family.init(0)))


# Fed+FT and Center.


@pytest.mark.parametrize("policy", LATE_POLICIES)
def test_7_13_fedft_without_epochs_is_fedavg(policy: str) -> None:
    close(params("fedft", 4, LATE, epochs=0, late_policy=policy), params("fedavg", 4, LATE, late_policy=policy))


def test_fedft_is_fedavg_then_adam() -> None:
    fed = federation(build=normed)
    mine = run(algorithm("fedft", lr=0.01, epochs=2), fed, 1).params
    other = federation(build=normed)
    averaged = run(algorithm("fedavg"), other, 1).params
    close(mine, train_on_server(other, averaged, other.server_batches(2, 64), 0.01).model)


def test_fedft_without_clients_is_center_with_a_fresh_optimiser() -> None:
    """One round each: nobody reports, and both take one epoch from the first model."""
    fed = {"std": 1e6, "cohort": 2}
    close(params("fedft", 1, fed, lr=0.01, epochs=1), params("center", 1, fed, lr=0.01, epochs=1))


def test_center_is_adam_over_all_its_epochs() -> None:
    fed = federation(server=server_data(40))
    batches = []
    for round in range(3):
        fed.begin(round, 1.0)
        batches += list(server_batches(fed, 1, 16))
    expected = train_on_server(fed, fed.family.init(0), batches, 0.02).model
    for rounds in (3, 5):  # and then it stands still
        state: Any = run(
            algorithm("center", epochs=3, batch_size=16, lr=0.02), federation(server=server_data(40)), rounds
        )
        close(state.params, expected)
        assert state.steps == 9
    capped: Any = run(algorithm("center", epochs=3, batch_size=16, max_steps=4), federation(server=server_data(40)), 3)
    assert capped.steps == 4


def test_center_asks_no_client() -> None:
    fed = federation()
    run(algorithm("center"), fed, 1)
    assert set(fed.collect()) == {"cost/server_gflops"}


# FedDF.


@pytest.mark.parametrize("server", [None, OUT_OF_DOMAIN], ids=["in", "out"])
@pytest.mark.parametrize("off", [{"epochs": 0}, {"max_steps": 0}])
def test_7_5_feddf_without_steps_is_fedavg(server: Any, off: dict[str, int]) -> None:
    for policy in LATE_POLICIES:
        mine = params("feddf", 4, LATE | {"server": server}, late_policy=policy, **off)
        close(mine, params("fedavg", 4, LATE, late_policy=policy))


def test_feddf_with_one_teacher_changes_nothing() -> None:
    fed = {"sizes": [12]}
    close(params("feddf", 2, fed, lr=1e-3), params("fedavg", 2, fed), atol=1e-8)


@pytest.mark.parametrize("server", [None, OUT_OF_DOMAIN], ids=["in", "out"])
def test_teachers_may_be_asked_once_or_at_every_epoch(server: Any) -> None:
    one, other = (
        params("feddf", 3, {"build": normed, "server": server}, epochs=3, batch_size=16, cache_teachers=cached)
        for cached in (True, False)
    )
    close(one, other, atol=1e-7)


@pytest.mark.parametrize("cosine", [True, False])
def test_feddf_is_distillation_written_out(cosine: bool) -> None:
    fed = federation([8, 20], server=server_data(40))
    built: Any = algorithm("feddf", lr=0.01, epochs=3, batch_size=40, temperature=2.0, clip_norm=0.05, cosine=cosine)
    fed.begin(0, 1.0)
    x = fed.family.init(0)
    y = fed.start_cohort((x,)).train(x)
    other = federation([8, 20], server=server_data(40))
    result = run(built, other, 1).params
    module = fed.family.module
    module.load_state_dict(fed.family.state_dict(run(algorithm("fedavg"), federation([8, 20]), 1).params))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    assert fed.server_data is not None
    inputs = fed.server_data.inputs
    teacher = torch.stack([federation().family.predict(w, inputs) for w in y]).mean(0)
    for t in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * ((1 + math.cos(math.pi * t / 3)) / 2 if cosine else 1)
        optimizer.zero_grad()
        p, q = (teacher / 2).softmax(1), (module(inputs) / 2).log_softmax(1)
        (p * (p.log() - q)).sum(1).mean().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        optimizer.step()
    close(result, fed.family.vector(module), atol=1e-6)  # torch adds 1e-6 to the norm that it clips


def test_feddf_learns_from_the_models_that_clients_had_not_from_changes() -> None:
    """A late client's model is what it trained, whatever has become of the server's since."""
    fed = federation([8, 8], server=server_data(40))
    built: Any = algorithm("feddf", epochs=400, batch_size=40, lr=0.02, cosine=False)
    state = built.init(fed)
    good = run(algorithm("fedavg"), federation([60], training=local(epochs=30)), 1).params
    zero = torch.zeros_like(good).unsqueeze(0)
    upload = ModelUpdate(zero, zero[:, :0], good.unsqueeze(0))
    late = Updates(upload, torch.tensor([0]), torch.tensor([8]), torch.tensor([3]))
    after = built.server_step(state, late, fed)
    assert fed.server_data is not None
    loss = [
        float(F.kl_div(*(fed.family.predict(w, fed.server_data.inputs).log_softmax(1) for w in (student, good)),
                       reduction="batchmean", log_target=True))
        for student in (state.params, after.params)
    ]  # fmt: skip
    assert loss[1] < 0.02 * loss[0]


def test_feddf_ignores_labels() -> None:
    server = server_data(40)
    shuffled = type(server)(server.inputs, server.targets.flip(0), server.num_classes, True)
    close(params("feddf", 2, {"server": server}), params("feddf", 2, {"server": shuffled}))


def test_feddf_skips_rounds_without_arrivals() -> None:
    fed = federation([8, 8], std=1e6)
    state = run(algorithm("feddf"), fed, 2)
    assert torch.equal(state.params, fed.family.init(0))


# Payloads and costs.


@pytest.mark.parametrize("name", ["ca2fl", "fedft", "hfcl", "feddf", "feddle"])
@pytest.mark.parametrize("build", [None, normed])
def test_7_20_payloads_are_one_model_each_way(name: str, build: Any) -> None:
    fed = federation(EQUAL, **({"build": build} if build else {}))
    run(algorithm(name), fed, 1)
    metrics = fed.collect()
    for way in ("comm/download_mb", "comm/upload_mb"):
        assert metrics[way] == pytest.approx(4 * fed.family.size * 4 / 1e6), way


def test_the_order_of_server_costs_is_table_8s() -> None:
    """GFLOPs of one round with equal iterations, and caches, of the same federation."""

    def cost(name: str, **overrides: Any) -> tuple[float, float]:
        fed = federation([4] * 20, server=server_data(60))
        run(algorithm(name, **overrides), fed, 3)
        metrics = fed.collect()
        return metrics["cost/server_gflops"], metrics["cost/server_cache_mb"] * 1e6 / 4 / fed.family.size

    search = {"epochs": 4, "batch_size": 60}
    flops, cache = {}, {}
    for name, overrides in (
        ("fedavg", {}),
        ("fedasync", {}),
        ("fedbuff", {"buffer_size": 40}),
        ("ca2fl", {"buffer_size": 40}),
        ("fedft", search),
        ("feddf", search | {"cache_teachers": False}),
        ("feddle", search),
    ):
        flops[name], cache[name] = cost(name, **overrides)
    aggregation = flops["fedavg"]
    assert flops["fedasync"] == flops["fedbuff"] == flops["ca2fl"] == aggregation
    per_example = federation().family.flops(torch.zeros(1, FEATURES, dtype=torch.float64))
    assert flops["fedft"] - aggregation == pytest.approx(240 * per_example.step / 1e9)
    assert flops["feddf"] - flops["fedft"] == pytest.approx(20 * 240 * per_example.forward / 1e9)
    params = federation().family.num_params
    assert flops["feddle"] - flops["fedft"] == pytest.approx(4 * 4 * 40 * params / 1e9)
    assert cache["fedavg"] == cache["fedasync"] == cache["fedft"] == cache["feddf"] == 0
    assert cache["fedbuff"] == 40 and cache["ca2fl"] == pytest.approx(22, abs=0.1)
    assert cache["feddle"] == pytest.approx(40, abs=3)
