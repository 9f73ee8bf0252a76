"""Feddle's atlas and search: identities, Eq 4 to 16, and its switches."""

from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlab_runner.algorithms.feddle import FeddleUpload
from fedlab_runner.algorithms.shared.atlas import Atlas, combine, project
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.core.updates import Updates
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import CLASSES, FEATURES, algorithm, federation, local, mlp, normed, run, server_data, tensors

CPU = torch.device("cpu")
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 2.0}
INF = float("inf")


def close(a: Tensor, b: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def feddle(**overrides: Any) -> Any:
    return algorithm("feddle", **overrides)


def atlas_of(anchors: Tensor, scores: list[float] | None = None) -> Atlas:
    order = torch.arange(len(anchors))
    return Atlas(anchors, torch.tensor(scores or [INF] * len(anchors), dtype=torch.float64), order, order, order)


def arrived(delta: Tensor, staleness: list[int] | None = None, buffers: Tensor | None = None) -> Updates[Any]:
    n = len(delta)
    upload = FeddleUpload(delta, delta.new_zeros(n, 0) if buffers is None else buffers)
    return Updates(upload, torch.arange(n), torch.ones(n, dtype=torch.int64), torch.tensor(staleness or [0] * n))


# The atlas.


def add(atlas: Atlas, deltas: Tensor, size: int = 3, by_score: bool = True) -> Atlas:
    ids = list(range(100, 100 + len(deltas)))
    return atlas.add(deltas, ids, [7] * len(deltas), size=size, by_score=by_score, device=CPU)


def test_anchors_fill_the_free_places_in_order() -> None:
    deltas = random(3, 4)
    atlas = add(Atlas.empty(torch.zeros(4, dtype=torch.float64)), deltas)
    assert torch.equal(atlas.anchors, deltas) and atlas.scores.tolist() == [INF] * 3
    assert (atlas.arrival.tolist(), atlas.clients.tolist(), atlas.rounds.tolist()) == (
        [0, 1, 2],
        [100, 101, 102],
        [7] * 3,
    )


@pytest.mark.parametrize(
    ("scores", "by_score", "place"),
    [
        ([0.3, 0.1, 0.2], True, 1),
        ([0.2, 0.1, 0.1], True, 1),
        ([INF, INF, INF], True, 0),
        ([INF, 0.9, INF], True, 1),
        ([0.3, 0.1, 0.2], False, 0),
    ],
)
def test_the_least_important_anchor_makes_room(scores: list[float], by_score: bool, place: int) -> None:
    """The first of equals; the oldest when none has been searched, and without importance scores."""
    old, new = random(3, 4), random(1, 4, seed=1)
    atlas = add(atlas_of(old, scores), new, by_score=by_score)
    kept = [m for m in range(3) if m != place]
    assert torch.equal(atlas.anchors[place], new[0]) and torch.equal(atlas.anchors[kept], old[kept])
    assert atlas.scores[place] == INF and atlas.arrival[place] == 3 and atlas.clients[place] == 100


def test_a_new_anchor_is_safe_from_later_arrivals_of_its_round() -> None:
    atlas = add(atlas_of(random(3, 4), [0.5, 0.4, 0.6]), random(3, 4, seed=1))
    assert atlas.arrival.tolist() == [4, 3, 5]
    more = add(atlas, random(1, 4, seed=2))
    assert more.arrival.tolist() == [4, 6, 5], "all are new: the oldest goes"


def test_an_update_of_zero_length_is_no_anchor() -> None:
    deltas = torch.tensor([[0.0], [1.0], [1e-200]], dtype=torch.float64).expand(3, 4)  # the last one has no square
    assert add(Atlas.empty(deltas[0]), deltas).clients.tolist() == [101]
    assert len(add(Atlas.empty(deltas[0]), deltas[[0, 2]]).anchors) == 0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 5), st.booleans())
def test_the_atlas_never_outgrows_its_size(per_round: list[int], size: int, by_score: bool) -> None:
    atlas, total = Atlas.empty(torch.zeros(2, dtype=torch.float64)), 0
    for seed, n in enumerate(per_round):
        atlas, total = add(atlas, random(n, 2, seed=seed), size, by_score), total + n
        assert len(atlas.anchors) == min(size, total)
        assert len(set(atlas.arrival.tolist())) == len(atlas.arrival)
        if total:
            assert int(atlas.arrival.max()) == total - 1, "the newest is always kept"
        atlas = atlas._replace(scores=random(len(atlas.anchors), seed=seed).abs())


def test_fifo_keeps_the_newest() -> None:
    state = run(feddle(importance_score=False, atlas_size=4, epochs=1), federation(**LATE), 9)
    newest = int(state.atlas.arrival.max())
    assert sorted(state.atlas.arrival.tolist()) == list(range(newest - 3, newest + 1))


# Eq 4.


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 7))
def test_normalised_anchors_are_as_long_as_the_median(m: int) -> None:
    anchors = random(m, 6) * torch.arange(1, m + 1).unsqueeze(1)
    scales = atlas_of(anchors).scales(True)
    lengths = sorted(anchors.norm(dim=1).tolist())
    median = (lengths[(m - 1) // 2] + lengths[m // 2]) / 2
    close((scales.unsqueeze(1) * anchors).norm(dim=1), torch.full((m,), median, dtype=torch.float64))
    assert torch.equal(atlas_of(anchors).scales(False), torch.ones(m, dtype=torch.float64))


def test_rescaling_an_anchor_changes_nothing_while_the_median_stays() -> None:
    anchors = random(5, 6) * torch.tensor([1.0, 2.0, 3.0, 4.0, 9.0]).unsqueeze(1)
    longer = anchors.clone()
    longer[4] *= 7.5
    one, other = (a * atlas_of(a).scales(True).unsqueeze(1) for a in (anchors, longer))
    close(one, other)


# Eq 15 and 16.


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 5, 9])
def test_combining_and_projecting_in_chunks_are_the_plain_products(chunk_size: int | None) -> None:
    x, anchors, weights = random(8), random(5, 8, seed=1), random(5, seed=2)
    close(combine(x, anchors, weights, chunk_size), x + weights @ anchors)
    close(project(x, anchors, chunk_size), anchors @ x)


class Probe(NamedTuple):
    """The coefficient gradient that the search uses, and the loss as a function of the coefficients."""

    gradient: Tensor
    plain: Any
    c: Tensor


def probe(monkeypatch: pytest.MonkeyPatch, build: Any, num_classes: int, **overrides: Any) -> Probe:
    """One search step on a full batch, with the gradient that Adam is given."""
    fed = federation(build=build, server=server_data(30, num_classes=num_classes))
    built = feddle(batch_size=30, epochs=1, **overrides)
    state = run(built, fed, 2)
    fed.begin(2, 1.0)
    deltas = random(3, fed.family.num_params, seed=4)
    seen: list[tuple[Tensor, Tensor]] = []
    adam = type(__import__("fedlab_runner.algorithms.shared.server_training", fromlist=["ADAM"]).ADAM)
    step = adam.step

    def spy(self: Any, w: Tensor, g: Tensor, *rest: Any) -> None:
        seen.append((w.clone(), g.clone()))
        step(self, w, g, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(adam, "step", spy)
        buffers = state.params[fed.family.num_params :].expand(3, -1)
        after = built.server_step(state, arrived(deltas, buffers=buffers), fed)
    c, g = seen[-1]
    atlas, p = after.atlas, fed.family.num_params
    normalised = atlas.anchors * atlas.scales(built.anchor_norm).unsqueeze(1)
    data, layer = fed.server_data, fed.family.classifier
    assert data is not None and layer is not None

    def plain(c: Tensor) -> Tensor:
        """The loss written out: autograd goes through omega + sum_m c_m a_m."""
        module = build().double()
        module.load_state_dict(fed.family.state_dict(state.params), strict=False)
        module.eval()
        views = fed.family.views(state.params[:p] + c @ normalised)
        if num_classes != CLASSES:
            theta = after.head
            views[f"{layer.name}.weight"] = theta[: num_classes * layer.num_features].view(num_classes, -1)
            views[f"{layer.name}.bias"] = theta[num_classes * layer.num_features :]
        return F.cross_entropy(torch.func.functional_call(module, views, (data.inputs,)), data.targets)

    return Probe(g, plain, c)


@pytest.mark.parametrize("build", [mlp, normed])
@pytest.mark.parametrize("num_classes", [CLASSES, 4])
@pytest.mark.parametrize("switches", [{}, {"anchor_norm": False}, {"store_on": "host", "chunk_size": 2}])
def test_the_coefficient_gradient_is_autograd_through_the_sum(
    build: Any, num_classes: int, switches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = probe(monkeypatch, build, num_classes, **switches)
    c = found.c.clone().requires_grad_()
    (expected,) = torch.autograd.grad(found.plain(c), c)
    assert expected.abs().min() > 1e-8
    close(found.gradient, expected, 1e-12)


def test_the_coefficient_gradient_is_the_slope_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe(monkeypatch, mlp, CLASSES)
    for m in range(len(found.c)):
        h = torch.zeros_like(found.c)
        h[m] = 1e-6
        slope = (found.plain(found.c + h) - found.plain(found.c - h)) / 2e-6
        assert float(found.gradient[m]) == pytest.approx(float(slope), abs=1e-8)


def test_the_pull_adds_lambda_times_the_distance() -> None:
    """Eq 10, two full-batch steps: the first starts at c' where the pull is zero."""
    results = {}
    for lam in (0.0, 0.5, 1e9):
        fed = federation(server=server_data(30))
        results[lam] = run(feddle(lam=lam, batch_size=30, epochs=40, lr=0.01), fed, 1).atlas.scores
    assert not torch.allclose(results[0.0], results[0.5])
    lengths = run(feddle(epochs=0), federation(), 1).atlas.scores
    assert (results[1e9] - lengths).abs().max() <= 2 * 0.01 < (results[0.0] - lengths).abs().max()


# The fallback.


@pytest.mark.parametrize("atlas_size", [8, 3, 2, 1])
@pytest.mark.parametrize("anchor_norm", [True, False])
def test_without_a_search_it_is_fedbuff_over_the_new_arrivals(anchor_norm: bool, atlas_size: int) -> None:
    """Whatever anchors there are, and where three arrivals a round are more than the atlas holds."""
    more: dict[str, Any] = {"cohort": 3, "sizes": [6, 3, 9, 5, 12, 8]}
    overrides = {"epochs": 0, "eta_fb": 0.7, "anchor_norm": anchor_norm, "atlas_size": atlas_size}
    state = run(feddle(**overrides), federation(**more), 5)
    other = run(algorithm("fedbuff", buffer_size=3, server_lr=0.7), federation(**more), 5)
    close(state.params, other.params)


def test_late_arrivals_count_alike_in_the_fallback() -> None:
    fed = federation()
    fed.begin(5, 1.0)
    built = feddle(epochs=0, eta_fb=0.5)
    state = built.init(fed)
    deltas = random(4, fed.family.num_params) * torch.tensor([1.0, 5.0, 0.1, 2.0]).unsqueeze(1)
    after = built.server_step(state, arrived(deltas, [0, 4, 2, 1]), fed)
    close(after.params, state.params + 0.5 * deltas.mean(0))
    assert after.atlas.rounds.tolist() == [5, 1, 3, 4]


def test_an_update_of_no_length_has_no_part_in_an_overflowing_step() -> None:
    fed = federation()
    built, deltas = feddle(epochs=0, eta_fb=0.5, atlas_size=2), random(4, federation().family.num_params)
    deltas[1] = 0.0
    state = built.init(fed)
    after = built.server_step(state, arrived(deltas), fed)
    close(after.params, state.params + 0.5 * deltas[[0, 2, 3]].mean(0))


def test_the_fallback_can_cover_the_whole_atlas() -> None:
    fed = federation()
    built = feddle(epochs=0, fallback="all", atlas_size=10)
    first, second = random(4, fed.family.num_params), random(2, fed.family.num_params, seed=1)
    state = built.server_step(built.init(fed), arrived(first), fed)
    after = built.server_step(state, arrived(second), fed)
    close(after.params, state.params + torch.cat([first, second]).mean(0))
    close(built.server_step(after, arrived(second[:0]), fed).params, after.params)


@pytest.mark.parametrize("nothing", [{"fallback": "zero"}, {"eta_fb": 0.0}])
def test_without_a_search_and_a_fallback_nothing_moves(nothing: dict[str, Any]) -> None:
    fed = federation()
    state = run(feddle(epochs=0, **nothing), fed, 4)
    close(state.params, fed.family.init(0))
    assert state.atlas.scores.abs().sum() == 0


def test_scores_are_the_coefficients_sizes() -> None:
    """omega_1 - omega_0 = sum_m c_m a_m determines c, since the anchors are independent."""
    fed = federation()
    state = run(feddle(), fed, 1)
    normalised = state.atlas.anchors * state.atlas.scales(True).unsqueeze(1)
    move = (state.params - fed.family.init(0)).unsqueeze(1)
    c = torch.linalg.lstsq(normalised.T, move).solution.squeeze(1)
    close(state.atlas.scores, c.abs(), 1e-8)


def test_without_arrivals_the_atlas_is_searched_from_zero() -> None:
    fed = federation()
    state = run(feddle(), fed, 2)
    empty = random(0, fed.family.num_params)
    for epochs, moves in ((0, False), (1, True)):
        after = feddle(epochs=epochs).server_step(state, arrived(empty), fed)
        assert torch.equal(after.params, state.params) != moves
        assert torch.equal(after.atlas.anchors, state.atlas.anchors)
    fresh = feddle().init(fed)
    assert feddle().server_step(fresh, arrived(empty), fed) is fresh


def test_a_single_anchor_is_its_own_median() -> None:
    fed = federation([8])
    x = fed.family.init(0)
    state = run(feddle(epochs=0), fed, 1)
    assert state.atlas.scores.tolist() == [pytest.approx(1.0)] and not torch.equal(state.params, x)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_anchor_and_a_convex_loss_never_go_up(sign: float) -> None:
    """Logistic regression on a full batch, longer and longer searches along the way to a good model or away from it."""
    kinds: dict[str, Any] = {"build": lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES)), "server": server_data(60)}
    fed = federation([60], **kinds)
    assert fed.server_data is not None
    x = fed.family.init(0)
    delta = sign * (run(algorithm("fedavg"), federation([60], training=local(epochs=5), **kinds), 1).params - x)
    losses = []
    for epochs in range(12):
        built = feddle(fallback="zero", epochs=epochs, batch_size=60, lr=0.02)
        state = built.server_step(built.init(fed), arrived(delta[None]), fed)
        logits = fed.family.predict(state.params, fed.server_data.inputs)
        losses.append(float(F.cross_entropy(logits, fed.server_data.targets)))
    assert all(b < a for a, b in pairwise(losses))


def test_coefficients_may_be_negative() -> None:
    fed = federation([20], server=server_data(60))
    x = fed.family.init(0)
    good = run(algorithm("fedavg"), federation([60], training=local(epochs=20)), 1).params - x
    built = feddle(fallback="zero", epochs=50, lr=0.05)
    fed.begin(0, 1.0)
    after = built.server_step(built.init(fed), arrived(-good[None]), fed)
    metrics = fed.collect()
    assert metrics["algorithm/coefficients_negative"] == 1 and metrics["algorithm/coefficients_max"] < -0.3
    assert metrics["algorithm/search_loss_last"] < metrics["algorithm/search_loss_first"]
    assert after.atlas.scores.item() == pytest.approx(metrics["algorithm/coefficients_mean_abs"])


def test_the_search_leaves_batch_norm_statistics_to_the_new_arrivals() -> None:
    fed = federation(build=normed, cohort=3)
    x = fed.family.init(0)
    fed.begin(0, 1.0)
    y = fed.start_cohort((x,)).train(x)
    state = run(feddle(), federation(build=normed, cohort=3), 1)
    close(state.params[fed.family.num_params :], y[:, fed.family.num_params :].mean(0))


def test_anchors_on_the_host_in_chunks_give_the_same_numbers() -> None:
    one = run(feddle(), federation(**LATE), 6)
    other = run(feddle(store_on="host", chunk_size=2), federation(**LATE), 6)
    close(one.params, other.params)


def test_the_atlas_is_twice_the_cohort_unless_told() -> None:
    for overrides, size in (({}, 6), ({"atlas_size": 4}, 4)):
        state = run(feddle(epochs=1, **overrides), federation([5] * 12, cohort=3), 6)
        assert len(state.atlas.anchors) == size


# Out-of-domain.


def test_out_of_domain_the_search_ignores_the_models_own_classifier() -> None:
    """Another classifier in the model changes neither the search nor what it finds for the body."""
    server = server_data(40, num_classes=4)
    fed = federation(server=server)
    head = fed.family.segments("2")[: fed.family.num_params]
    deltas = random(4, fed.family.num_params)
    deltas[:, head] = 0
    built = feddle()
    state = built.init(fed)
    changed = state._replace(params=torch.where(head, 3.0, 1.0) * state.params)
    one, other = (built.server_step(s, arrived(deltas), fed) for s in (state, changed))
    close(one.atlas.scores, other.atlas.scores)
    close(one.params[~head], other.params[~head])
    assert not torch.allclose(one.params[~head], state.params[~head])


def test_out_of_domain_the_whole_anchor_is_added() -> None:
    fed = federation(server=server_data(40, num_classes=4))
    state = run(feddle(), fed, 1)
    normalised = state.atlas.anchors * state.atlas.scales(True).unsqueeze(1)
    move = (state.params - fed.family.init(0)).unsqueeze(1)
    assert torch.linalg.lstsq(normalised.T, move).residuals.abs().sum() < 1e-16
    assert move[fed.family.segments("2")].abs().sum() > 0, "the classifier moves with the body"


def test_the_head_starts_at_zero_is_trained_at_the_fallback_and_persists() -> None:
    """Eq 8, two steps on a full batch, written out."""
    server = server_data(40, num_classes=4)
    fed = federation(server=server)
    built = feddle(batch_size=40, epochs=2, lr=0.01)
    state = built.init(fed)
    assert state.head.shape == (4 * 7,) and not state.head.any()
    deltas = random(3, fed.family.num_params)
    after = built.server_step(state, arrived(deltas), fed)
    body = fed.family.state_dict(state.params + deltas.mean(0))
    features = torch.tanh(server.inputs @ body["0.weight"].T + body["0.bias"])
    layer = nn.Linear(6, 4, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(layer(features), server.targets).backward()
        optimizer.step()
    close(after.head, torch.cat([layer.weight.detach().flatten(), layer.bias.detach()]))
    again = built.server_step(after, arrived(deltas), fed)
    assert not torch.allclose(again.head, after.head) and again.head.norm() > after.head.norm(), "it continues there"


@pytest.mark.parametrize("num_classes", [2, 4])
def test_out_of_domain_pulls_to_the_fallback_by_default(num_classes: int) -> None:
    def scores(**overrides: Any) -> Tensor:
        fed = federation(server=server_data(30, num_classes=num_classes))
        result: Tensor = run(feddle(lr=0.02, **overrides), fed, 1).atlas.scores
        return result

    assert torch.equal(scores(), scores(lam=0.01)) and not torch.equal(scores(), scores(lam=0.0))


def test_in_domain_there_is_no_pull_and_no_head_by_default() -> None:
    states = [run(feddle(**overrides), federation(), 2) for overrides in ({}, {"lam": 0.0})]
    assert torch.equal(states[0].params, states[1].params) and states[0].head.numel() == 0


def test_a_classifier_without_bias_has_a_head_without_bias() -> None:
    build = lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES, bias=False))  # noqa: E731
    state = run(feddle(epochs=1), federation(build=build, server=server_data(30, num_classes=4)), 2)
    assert state.head.shape == (24,) and state.head.abs().sum() > 0


@pytest.mark.parametrize(
    "last", [[nn.Linear(FEATURES, 6), nn.Linear(6, 4), nn.LogSoftmax(1)], [nn.Linear(FEATURES, 3)]]
)
def test_out_of_domain_needs_a_body_and_a_linear_classifier(last: list[nn.Module]) -> None:
    with pytest.raises(UserError, match="a body before a linear classifier"):
        feddle().init(federation(build=lambda: nn.Sequential(*last), server=server_data(30, num_classes=4)))


# Steps, costs and switches.


@pytest.mark.parametrize(("max_steps", "steps"), [(None, 4), (3, 3), (0, 0)])
def test_the_search_takes_as_many_steps_as_it_may(max_steps: int | None, steps: int) -> None:
    fed = federation([8, 8], server=server_data(90))
    built = feddle(epochs=2, batch_size=50, max_steps=max_steps)
    run(built, fed, 1)
    flops = fed.family.flops(torch.zeros(1, FEATURES, dtype=torch.float64))
    examples = {4: 180, 3: 140, 0: 0}[steps]
    anchors = 4 * 2 * fed.family.num_params * steps
    received = 2 * 2 * fed.family.size
    assert fed.collect()["cost/server_gflops"] == pytest.approx((examples * flops.step + anchors + received) / 1e9)
    cache = fed.collect()["cost/server_cache_mb"] * 1e6 / 4
    assert cache == 2 * fed.family.num_params + 4 * 2, "two anchors and what is known of them"


def test_out_of_domain_the_servers_classifier_costs_operations() -> None:
    """The network 5 - 6 - 3 on 90 examples once; its features in a head of 4 classes; then the search, whose head does
    not learn.
    """
    fed = federation([8, 8], server=server_data(90, num_classes=4))
    run(feddle(epochs=2, batch_size=50), fed, 1)
    features, head = 2 * FEATURES * 6, 2 * 6 * 4
    before = 90 * (features + 2 * 6 * CLASSES) + 180 * 2 * head
    search = 180 * (2 * features + 2 * head) + 4 * 4 * 2 * fed.family.num_params
    received = 2 * 2 * fed.family.size
    assert fed.collect()["cost/server_gflops"] == pytest.approx((before + search + received) / 1e9)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"atlas_size": 0}, "atlas_size must be >= 1, got 0"),
        ({"chunk_size": 0}, "chunk_size must be >= 1, got 0"),
        ({"fallback": "fedavg"}, "fallback must be one of fedbuff, all, zero, got fedavg"),
        ({"eta_fb": -1.0}, "eta_fb must be >= 0, got -1.0"),
        ({"lam": -0.1}, "lam must be >= 0, got -0.1"),
        ({"lr": 0.0}, "lr must be > 0, got 0.0"),
        ({"epochs": -1}, "epochs must be >= 0, got -1"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"max_steps": -1}, "max_steps must be >= 0, got -1"),
        ({"store_on": "disk"}, "store_on must be one of device, host, got disk"),
    ],
)
def test_bad_fields_name_themselves(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        feddle(**overrides)


def test_out_of_domain_runs_go_on_bit_for_bit_and_in_either_executor() -> None:
    """The common checks, which use in-domain data, once more."""
    kinds = LATE | {"server": server_data(30, num_classes=4)}
    whole_fed, fed = federation(**kinds), federation(**kinds)
    whole = run(feddle(epochs=2), whole_fed, 4)
    saved = pack({"state": whole, "fed": whole_fed.state_dict()})
    whole = run(feddle(epochs=2), whole_fed, 4, first=4, state=whole)
    fed.load_state_dict(saved["fed"])
    state = unpack(saved["state"], like=feddle().init(fed))
    again = run(feddle(epochs=2), fed, 4, first=4, state=state)
    vectorised = run(feddle(epochs=2), federation(**kinds, executor=Vectorized(2, compile=False)), 8)
    assert tensors(whole)[-1].shape == (4 * 7,)
    for a, b, c in zip(*map(tensors, (whole, again, vectorised)), strict=True):
        assert torch.equal(a, b)
        close(a.double(), c.double(), 1e-8)
