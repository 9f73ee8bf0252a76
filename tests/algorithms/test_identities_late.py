"""Identities between algorithms, and with closed forms: the numbers are those of `algorithms.md`, section 7."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedlab_runner.core.updates import Updates
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.toy import EQUAL, RAGGED, algorithm, federation, local, normed, run


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def arrivals(rows: Tensor, staleness: list[int], num_examples: list[int] | None = None) -> Updates[Any]:
    class Update(NamedTuple):
        rows: Tensor
        statistics: Tensor
        models: Tensor

    n = len(rows)
    sizes = torch.tensor(num_examples or [1] * n)
    return Updates(Update(rows, rows[:, :0], rows), torch.arange(n), sizes, torch.tensor(staleness))


def fedavg(**overrides: Any) -> Any:
    return algorithm("fedavg", **overrides)


def params(name: str, rounds: int = 3, sizes: Any = RAGGED, build: Any = None, **overrides: Any) -> Tensor:
    fed = federation(sizes, **({"build": build} if build else {}))
    built = algorithm(name, **overrides)
    return built.models(run(built, fed, rounds))


def test_fedavg_is_the_mean_weighted_by_examples() -> None:
    fed = federation(RAGGED, build=normed)
    x = fed.family.init(0)
    fed.begin(0, 1.0)
    y = fed.start_cohort((x,)).train(x)
    order = federation(RAGGED).start_cohort((x,)).ids
    weights = torch.tensor(RAGGED, dtype=torch.float64)[order]
    close(params("fedavg", 1, build=normed), (weights.unsqueeze(1) * y).sum(0) / weights.sum())
    close(params("fedavg", 1, build=normed, weighting="uniform"), y.mean(0))


def test_7_1_fedprox_without_pull_is_fedavg() -> None:
    close(params("fedprox", mu=0.0), params("fedavg"))
    assert not torch.allclose(params("fedprox", mu=1.0), params("fedavg"))


def test_fedprox_pulls_with_mu_times_the_distance() -> None:
    """One full-batch step: the gradient of mu/2 ||w - x||^2 is zero at x and mu (w - x) after it."""
    fed = federation([8], training=local(epochs=2, lr=0.1))
    x = fed.family.init(0)
    after_one = run(fedavg(), federation([8], training=local(epochs=1, lr=0.1)), 1).params
    after_two = run(fedavg(), fed, 1).params
    pulled = run(algorithm("fedprox", mu=0.7), federation([8], training=local(epochs=2, lr=0.1)), 1).params
    close(pulled, after_two - 0.1 * 0.7 * (after_one - x))


def test_fedprox_leaves_batch_norm_statistics_out_of_the_distance() -> None:
    fed = federation([8], build=normed, training=local(epochs=1))
    one_step = params("fedprox", 1, [8], normed, mu=5.0)
    assert torch.isfinite(one_step[fed.family.num_params :]).all()
    shared = federation([8], build=normed, training=local(epochs=1))
    close(run(algorithm("fedprox", mu=5.0), shared, 1).params, run(fedavg(), fed, 1).params)


def test_7_1_uniform_weights_are_size_weights_for_equal_clients() -> None:
    close(params("fedavg", sizes=EQUAL, weighting="uniform"), params("fedavg", sizes=EQUAL))


def test_7_2_scaffold_starts_as_fedavg() -> None:
    close(params("scaffold", 1, EQUAL), params("fedavg", 1, EQUAL))
    assert not torch.allclose(params("scaffold", 2, EQUAL), params("fedavg", 2, EQUAL))


@pytest.mark.parametrize("build", [None, normed])
def test_7_2_the_server_control_is_the_mean_of_all_clients(build: Any) -> None:
    fed = federation([6, 3, 9, 2, 12, 8], cohort=2, std=1.5, **({"build": build} if build else {}))
    state = run(algorithm("scaffold"), fed, 9)
    close(state.c, sum(state.c_i.values()) / fed.num_clients)
    assert 2 < len(state.c_i) <= fed.num_clients, "others are zero"
    assert state.c.abs().sum() > 0


def test_7_2_one_client_learns_its_own_gradient() -> None:
    """One full-batch step from x: c_plus = (x - y) / lr = the gradient at x."""
    fed = federation([8], training=local(epochs=1))
    state = run(algorithm("scaffold"), fed, 1)
    close(state.c_i[0], (fed.family.init(0) - state.params) / 0.1)
    close(state.c, state.c_i[0])


def test_scaffold_steps_are_those_of_line_10() -> None:
    """Two rounds of two clients with one full-batch step each, written out."""
    fed = federation([8, 8], training=local(epochs=1))
    built = algorithm("scaffold", server_lr=0.5)
    first = run(built, fed, 1)
    second = run(built, fed, 1, first=1, state=first)
    other = federation([8, 8], training=local(epochs=1))
    other.begin(1, 1.0)
    cohort = other.start_cohort((first.params,))
    y = cohort.train(first.params)
    g = (first.params - y) / 0.1
    corrected = first.params - 0.1 * (g - torch.stack([first.c_i[i] for i in cohort.ids.tolist()]) + first.c)
    close(second.params, first.params + 0.5 * (corrected - first.params).mean(0))


def test_7_9_late_policies_agree_when_nothing_is_late() -> None:
    reference = params("fedavg", build=normed)
    for policy in ("model", "discard"):
        close(params("fedavg", build=normed, late_policy=policy), reference)


def test_late_policies_differ_as_they_say() -> None:
    x = torch.tensor([10.0, 10.0])
    rows, state = torch.tensor([[1.0, 0.0], [3.0, 2.0]]), type(fedavg().init(federation([4])))
    step = {
        p: fedavg(late_policy=p).server_step(state(x), arrivals(rows, [2, 0], [1, 3]), None).params
        for p in ("delta", "model", "discard")
    }
    assert step["delta"].tolist() == [12.5, 11.5], "x + (1/4 [1, 0] + 3/4 [3, 2])"
    assert step["model"].tolist() == [2.5, 1.5], "1/4 [1, 0] + 3/4 [3, 2]"
    assert step["discard"].tolist() == [13.0, 12.0], "x + [3, 2]"


def test_7_9_fedasync_with_one_fresh_client_and_full_weight_is_that_client() -> None:
    close(params("fedasync", 2, [8], alpha=1.0), params("fedavg", 2, [8]))


def test_7_13_fedasync_without_weight_does_nothing() -> None:
    close(params("fedasync", 3, alpha=0.0), federation().family.init(0))


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [("constant", [0.5, 0.5, 0.5]), ("polynomial", [0.5, 0.25, 0.125]), ("hinge", [0.5, 0.25, 0.125])],
)
def test_fedasync_mixes_in_order_with_the_weight_of_its_staleness(staleness: str, expected: list[float]) -> None:
    """s: polynomial (1 + tau)^-1 for tau 0, 1, 3; hinge 1 / (tau - 0 + 1)."""
    built: Any = algorithm("fedasync", alpha=0.5, staleness=staleness, a=1.0, b=0.0)
    rows = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    x = torch.tensor([8.0], dtype=torch.float64)
    result = built.server_step(type(built.init(federation([4])))(x), arrivals(rows, [0, 1, 3]), None).params
    for y, alpha in zip(rows, expected, strict=True):
        x = (1 - alpha) * x + alpha * y
    close(result, x)


def test_the_hinge_is_flat_up_to_b() -> None:
    built: Any = algorithm("fedasync", alpha=1.0, staleness="hinge", a=10.0, b=4.0)
    x = torch.zeros(1, dtype=torch.float64)
    ones = torch.ones(1, 1, dtype=torch.float64)
    state = type(built.init(federation([4])))
    weights = [built.server_step(state(x), arrivals(ones, [tau]), None).params.item() for tau in (0, 4, 5, 8)]
    assert weights == pytest.approx([1, 1, 1 / 11, 1 / 41])


def test_fedasync_with_rho_is_proximal_on_the_clients() -> None:
    close(params("fedasync", 1, [8], alpha=1.0, rho=0.3), params("fedprox", 1, [8], mu=0.3))


def test_7_9_fedbuff_with_a_buffer_of_the_cohort_is_uniform_fedavg() -> None:
    close(params("fedbuff", buffer_size=len(RAGGED)), params("fedavg", weighting="uniform"))


def test_fedbuff_steps_whenever_the_buffer_is_full_and_keeps_the_rest() -> None:
    built: Any = algorithm("fedbuff", buffer_size=2, server_lr=0.5, staleness_exp=1.0)
    state = built.init(federation([4]))._replace(params=torch.zeros(1), buffer=torch.tensor([[4.0]]))
    fed = federation([4])
    rows = torch.tensor([[2.0], [8.0], [1.0], [9.0]])
    after = built.server_step(state, arrivals(rows, [0, 1, 0, 2]), fed)
    # weighted: 2, 4, 1, 3; buffer 4 2 | 4 1 | 3: steps 0.5 * 3 and 0.5 * 2.5
    assert after.params.tolist() == [pytest.approx(2.75)] and after.buffer.tolist() == [[3.0]]
    assert fed.collect() == {"algorithm/buffered": 1}


def test_fedbuff_without_a_full_buffer_does_not_move() -> None:
    built: Any = algorithm("fedbuff", buffer_size=100)
    state = run(built, federation(EQUAL), 3)
    assert torch.equal(state.params, federation(EQUAL).family.init(0)) and state.buffer.shape[0] == 12


def test_7_20_payloads_are_those_of_the_table() -> None:
    """Section 5: down and up in values of 4 bytes, per participant."""
    for build in (None, normed):
        more = {"build": build} if build else {}
        family = federation(EQUAL, **more).family
        p, d = family.num_params, family.size
        for name, down, up in (
            ("fedavg", d, d),
            ("fedprox", d, d),
            ("fedasync", d, d),
            ("fedbuff", d, d),
            ("scaffold", d + p, d + p),
        ):
            fed = federation(EQUAL, **more)
            run(algorithm(name), fed, 1)
            metrics = fed.collect()
            assert metrics["comm/download_mb"] == pytest.approx(4 * down * 4 / 1e6), name
            assert metrics["comm/upload_mb"] == pytest.approx(4 * up * 4 / 1e6), name


def test_identities_hold_in_the_vectorised_executor_too() -> None:
    executor = Vectorized(chunk_size=3, compile=False)
    one = run(algorithm("fedprox", mu=0.0), federation(executor=executor), 2).params
    close(one, run(fedavg(), federation(executor=executor), 2).params)
