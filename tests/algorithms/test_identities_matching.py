"""Identities of FedMA and GAMF (algorithms.md, 7.6), and FedMA layer by layer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hydra.errors import InstantiationException
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from fedlab_runner.algorithms.matching.neurons import permute
from fedlab_runner.algorithms.matching.structure import neuron_groups
from fedlab_runner.algorithms.shared.averaging import Models
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily, Normalize
from fedlab_runner.core.updates import Updates
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.models.cnn_small import SmallCNN
from fedlab_runner.utils.errors import UserError
from tests.helpers.identities import close
from tests.helpers.toy import (
    CLASSES,
    CPU,
    EQUAL,
    FEATURES,
    RAGGED,
    algorithm,
    federation,
    local,
    mlp,
    normed,
    run,
    tensors,
)

BOTH = ["fedma", "gamf"]


def deep() -> nn.Module:
    """A chain of three layers with neurons, one of them with a norm."""
    return nn.Sequential(
        nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES)
    )


def residual() -> nn.Module:
    """A small network of torchvision's residual blocks."""
    reduce = nn.Sequential(nn.Conv2d(6, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
    blocks = [BasicBlock(6, 6), BasicBlock(6, 8, 2, reduce)]
    return nn.Sequential(nn.Conv2d(1, 6, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def cnn() -> nn.Module:
    return SmallCNN(None, None).build(1, 4, CLASSES)


def with_images(build: Callable[[], nn.Module], size: int) -> Federation:
    """A federation that is never trained: for server steps on made-up arrivals."""
    fed = federation([4])
    fed.family = ModelFamily(build, CLASSES, normalize=Normalize(None, None), device=CPU, dtype=torch.float64)
    inputs = torch.rand(4, 1, size, size, generator=torch.Generator().manual_seed(0))
    fed.trainer.client_data = ClientData(inputs, torch.zeros(4, dtype=torch.int64), [np.arange(4)], CPU)
    return fed


def arrivals(models: Tensor, num_examples: list[int], staleness: list[int] | None = None) -> Updates[Any]:
    n = len(models)
    return Updates(Models(models), torch.arange(n), torch.tensor(num_examples), torch.tensor(staleness or [0] * n))


def copies(fed: Federation, n: int) -> tuple[Tensor, Tensor]:
    """A model [D], and it and n copies of it with all neurons in other orders [1 + n, D]."""
    groups, family = neuron_groups(fed.family, fed.client_data.inputs), fed.family
    w = family.init(5) + 0.1 * torch.rand(family.size, dtype=family.dtype, generator=torch.Generator().manual_seed(1))
    rows, rng = [w], np.random.default_rng(2)
    for _ in range(n):
        row = w
        for group in groups:
            row = permute(row, group, rng.permutation(group.size))
        rows.append(row)
    return w, torch.stack(rows)


FEDERATIONS = {
    "mlp": lambda: federation([4]),
    "batch_norm": lambda: federation([4], build=deep),
    "cnn": lambda: with_images(cnn, 4),
    "resnet": lambda: with_images(residual, 4),
}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("which", FEDERATIONS)
def test_7_6_the_mean_of_reordered_copies_is_the_model(name: str, which: str) -> None:
    fed = FEDERATIONS[which]()
    built: Any = algorithm(name)
    w, models = copies(fed, 2)
    fed.begin(0, 1.0)
    after = built.server_step(built.init(fed), arrivals(models, [9, 4, 2]), fed).params
    torch.testing.assert_close(after, w, rtol=0, atol=1e-12)
    inputs = fed.client_data.inputs
    torch.testing.assert_close(
        fed.family.predict(after, inputs), fed.family.predict(models[2], inputs), rtol=1e-9, atol=0
    )
    metrics = fed.collect()
    assert 0.4 < metrics["algorithm/moved_neurons"] < 0.67 and metrics["cost/server_gflops"] > 0
    averaged = arrivals(models, [9, 4, 2]).mean(models)
    assert not torch.allclose(averaged, w), "without matching the mean is another model"


@pytest.mark.parametrize("name", BOTH)
def test_a_single_arrival_is_the_next_model(name: str) -> None:
    fed = federation(RAGGED, build=normed, cohort=1)
    built: Any = algorithm(name)
    fed.begin(0, 1.0)
    x = built.init(fed).params
    y = federation(RAGGED, build=normed, cohort=1)
    y.begin(0, 1.0)
    close(built.round(built.init(fed), fed).params, y.start_cohort((x,)).train(x)[0])


@pytest.mark.parametrize("name", BOTH)
def test_where_nothing_moves_it_is_fedavg(name: str) -> None:
    """Clients that have hardly moved from one model keep its order."""
    training = local(lr=1e-3)
    mine = run(algorithm(name, weighting="size"), federation(RAGGED, build=deep, training=training), 2)
    plain = run(algorithm("fedavg", late_policy="model"), federation(RAGGED, build=deep, training=training), 2)
    close(mine.params, plain.params)


@pytest.mark.parametrize("name", BOTH)
def test_late_models_are_matched_or_dropped(name: str) -> None:
    fed = federation([4])
    w, models = copies(fed, 1)
    for policy, expected in (("model", (w * 3 + w) / 4), ("discard", w)):
        built: Any = algorithm(name, late_policy=policy, weighting="size")
        fed.begin(0, 1.0)
        close(built.server_step(built.init(fed), arrivals(models, [3, 1], [0, 2]), fed).params, expected)
    only_late = arrivals(models, [3, 1], [1, 2])
    built = algorithm(name, late_policy="discard")
    state = built.init(fed)
    assert built.server_step(state, only_late, fed) is state


@pytest.mark.parametrize("name", BOTH)
def test_nothing_arrives_and_nothing_changes(name: str) -> None:
    fed = federation([4])
    built: Any = algorithm(name)
    state = built.init(fed)
    assert torch.equal(
        built.server_step(state, arrivals(state.params.new_zeros(0, len(state.params)), []), fed).params, state.params
    )


@pytest.mark.parametrize("name", BOTH)
def test_the_payload_is_the_model(name: str) -> None:
    fed = federation(EQUAL, build=normed)
    run(algorithm(name), fed, 1)
    for key in ("comm/upload_mb", "comm/download_mb"):
        assert fed.collect()[key] == pytest.approx(4 * fed.family.size * 4 / 1e6)
    assert fed.collect()["cost/server_cache_mb"] == 0


@pytest.mark.parametrize("name", BOTH)
def test_a_model_without_neurons_is_refused(name: str) -> None:
    fed = federation([4], build=lambda: nn.Linear(FEATURES, CLASSES))
    with pytest.raises(UserError, match=f"^algorithm={name} matches hidden neurons, and finds none in this Linear"):
        algorithm(name).check(fed)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fedma", {"sigma": 0.0}, "sigma must be > 0, got 0.0"),
        ("fedma", {"sigma0": -1.0}, "sigma0 must be > 0, got -1.0"),
        ("fedma", {"sweeps": -1}, "sweeps must be >= 0, got -1"),
        ("fedma", {"late_policy": "delta"}, "late_policy must be one of model, discard, got delta"),
        ("fedma", {"layerwise": True}, "late_policy must be discard with layerwise true, got model"),
        ("fedma", {"first_models": "x"}, "first_models must be one of same, own, got x"),
        ("fedma", {"layerwise": True, "matched": False}, "matched must be true with layerwise true, got false"),
        ("fedma", {"weighting": "x"}, "weighting must be one of size, uniform, got x"),
        ("gamf", {"tau": 0.0}, "tau must be finite and > 0, got 0.0"),
        ("gamf", {"tau_min": 0.0}, "tau_min must be finite and > 0, got 0.0"),
        ("gamf", {"tau_decay": 1.0}, "tau_decay must be in (0, 1), got 1.0"),
        ("gamf", {"sinkhorn_steps": 0}, "sinkhorn_steps must be >= 1, got 0"),
        ("gamf", {"max_iterations": 0}, "max_iterations must be >= 1, got 0"),
        ("gamf", {"late_policy": "delta"}, "late_policy must be one of model, discard, got delta"),
        ("gamf", {"weighting": "x"}, "weighting must be one of size, uniform, got x"),
    ],
)
def test_bad_values_are_named(name: str, changes: dict[str, Any], message: str) -> None:
    """Hydra wraps what the constructor raises."""
    with pytest.raises(InstantiationException) as error:
        algorithm(name, **changes)
    assert str(error.value.__cause__) == message


# --- FedMA where it must differ from FedAvg ---


def test_clients_begin_their_first_round_from_models_of_their_own_if_asked() -> None:
    """Each once, in whichever round it is asked first, late ones too; then from the server's."""
    fed, built = (
        federation(EQUAL, build=mlp, cohort=2, training=local(lr=1e-300)),
        algorithm("fedma", first_models="own"),
    )
    state, seen = built.init(fed), set()
    own = torch.stack([fed.family.init(fed.seed, 1 + client) for client in range(len(EQUAL))])
    assert len(own.unique(dim=0)) == len(EQUAL) and torch.equal(state.params, fed.family.init(fed.seed))
    for t in range(6):
        fed.begin(t, 1.0)
        cohort = fed.start_cohort(built.broadcast(state))
        upload = built.client_update(state, cohort)
        for row, client in zip(upload.models, cohort.client_ids.tolist(), strict=True):
            assert torch.equal(row, state.params if client in seen else own[client])
        seen |= set(cohort.client_ids.tolist())
        state = built.server_step(state, fed.collect_updates(cohort, upload), fed)
    assert seen == set(range(len(EQUAL)))


def test_models_that_began_apart_are_matched_and_their_mean_is_better_than_that_of_the_models_as_they_are() -> None:
    """One round of long training from different models; with one first model there is nothing to find."""
    fed = federation([40, 40, 40], build=mlp, training=local(epochs=40, lr=0.2))

    def after(**how: Any) -> tuple[float, float]:
        built: Any = algorithm("fedma", sigma=0.3, **how)
        state = run(built, fed, 1)
        logits = fed.family.predict(state.params, fed.client_data.inputs)
        return float(F.cross_entropy(logits, fed.client_data.targets)), fed.collect().get(
            "algorithm/moved_neurons", 0.0
        )

    apart, moved = after(first_models="own")
    coordinates, unmoved = after(first_models="own", matched=False)
    assert moved > 0.3 and unmoved == 0 and apart < coordinates
    together, still = after()
    assert still == 0 and together == after(matched=False)[0]


def test_layer_by_layer_a_pass_may_begin_from_models_of_the_clients_own() -> None:
    """Upper layers stay their own until their turn; the next pass begins from the server's model."""

    def chain() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def starts(state: Any, t: int) -> Tensor:
        fed = federation(EQUAL, build=chain, training=local(lr=1e-300))
        fed.begin(t, 1.0)
        return built.client_update(state, fed.start_cohort(built.broadcast(state))).models

    fed, built = federation(EQUAL, build=chain, training=local(lr=1e-300)), layerwise(first_models="own")
    state = built.init(fed)
    assert len(starts(state, 0).unique(dim=0)) == len(EQUAL)
    state = run(built, fed, 1, state=state)
    assert fed.collect()["algorithm/moved_neurons"] > 0.3
    assert len(starts(state, 1).unique(dim=0)) == len(EQUAL), "the upper layers"
    state = run(built, fed, 2, first=1, state=state)
    assert not state.taken.any() and state.layer == 0
    rows = starts(state, 3)
    assert torch.equal(rows, state.params.expand_as(rows))


# --- FedMA, layer by layer ---


def layerwise(**changes: Any) -> Any:
    return algorithm("fedma", layerwise=True, late_policy="discard", **changes)


def test_layer_by_layer_a_pass_freezes_what_is_matched_and_begins_again() -> None:
    """Three rounds for three layers, with an optimiser that would move frozen values on its own."""
    fed = federation(RAGGED, build=deep, training=local(momentum=0.5, weight_decay=0.1))
    first, second = neuron_groups(fed.family, fed.client_data.inputs)
    x0 = layerwise().init(fed)
    one = run(layerwise(), fed, 1)
    two = run(layerwise(), fed, 1, first=1, state=one)
    three = run(layerwise(), fed, 1, first=2, state=two)
    four = run(layerwise(), fed, 1, first=3, state=three)
    assert [s.layer for s in (x0, one, two, three, four)] == [0, 1, 2, 0, 1]
    of_first, of_second = first.own(x0.params), second.own(x0.params)
    assert torch.equal(one.frozen, of_first) and torch.equal(two.frozen, of_first | of_second)
    assert torch.equal(one.params[of_first], three.params[of_first])
    assert torch.equal(two.params[of_second], three.params[of_second]), "the norm and its statistics too"
    assert not torch.equal(one.params[of_second], two.params[of_second])
    assert not torch.equal(two.params[~two.frozen], three.params[~two.frozen])
    assert not three.frozen.any() and not three.taken.any() and three.told == 0
    assert not torch.equal(three.params[of_first], four.params[of_first])
    metrics, values = fed.collect(), 4 * len(RAGGED) / 1e6
    assert metrics["comm/upload_mb"] == pytest.approx(values * fed.family.size)
    assert metrics["comm/download_mb"] == pytest.approx(values * fed.family.size)
    run(layerwise(), fed, 1, first=4, state=four)
    assert fed.collect()["comm/download_mb"] == pytest.approx(values * (fed.family.size + first.size)), "and the order"


def test_layer_by_layer_clients_go_on_with_their_own_upper_layers() -> None:
    """Only those that took part in the round before, with the first layer from the server."""
    fed = federation(EQUAL, build=deep)
    one = run(layerwise(), fed, 1)
    assert one.taken.all()
    missing = one._replace(taken=torch.tensor([True, False, True, True]))
    starts: list[Tensor] = []

    class Watched:
        def __init__(self, cohort: Any) -> None:
            self._cohort = cohort

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cohort, name)

        def train(self, start: Tensor, **how: Any) -> Tensor:
            starts.append(start)
            return start.clone()

    fed.begin(1, 1.0)
    cohort: Any = Watched(fed.start_cohort((one.params,)))
    layerwise().client_update(missing, cohort)
    for row, client in enumerate(cohort.client_ids.tolist()):
        upper = one.params if client == 1 else one.models[client]
        assert torch.equal(starts[0][row], torch.where(one.frozen, one.params, upper))
    assert not torch.equal(one.models[0], one.models[2]), "their upper layers differ"


def test_layer_by_layer_of_reordered_copies_ends_with_the_model() -> None:
    fed = federation(EQUAL[:3], build=deep)
    w, models = copies(fed, 2)
    built = layerwise()
    state = built.init(fed)
    for round, group in enumerate([*neuron_groups(fed.family, fed.client_data.inputs), None]):
        fed.begin(round, 1.0)
        state = built.server_step(state, arrivals(models, [8, 8, 8]), fed)
        if group is not None:  # each client now takes its neurons of this layer in the server's order
            models = state.models
    close(state.params, w)


def test_layer_by_layer_resumes_bit_for_bit_and_agrees_between_executors() -> None:
    setting: dict[str, Any] = {"sizes": [6, 3, 9, 12, 8, 5], "cohort": 3, "std": 1.5, "build": deep}
    fed = federation(**setting)
    half = run(layerwise(), fed, 4)
    saved = pack({"state": half, "fed": fed.state_dict()})
    whole = run(layerwise(), fed, 4, first=4, state=half)
    other = federation(**setting)
    state = unpack(saved["state"], like=layerwise().init(other))
    other.load_state_dict(saved["fed"])
    resumed = run(layerwise(), other, 4, first=4, state=state)
    assert all(torch.equal(a, b) for a, b in zip(tensors(resumed), tensors(whole), strict=True))
    vectorised = run(layerwise(), federation(**setting, executor=Vectorized(2, compile=False)), 8)
    for mine, theirs in zip(tensors(vectorised), tensors(whole), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-8)


def test_layer_by_layer_needs_a_chain() -> None:
    with pytest.raises(
        UserError, match=r"^algorithm=fedma with layerwise=true needs a chain .* which this Sequential is"
    ):
        layerwise().check(with_images(residual, 4))
    layerwise().check(federation([4], build=mlp))
    layerwise().check(with_images(cnn, 4))
