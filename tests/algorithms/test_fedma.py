"""FedMA: matching where models began apart, and layer by layer."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hydra.errors import InstantiationException

from fedlab_runner.algorithms.matching.structure import neuron_groups
from fedlab_runner.algorithms.shared.averaging import Models
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.utils.errors import UserError
from tests.helpers.identities import arrivals, close
from tests.helpers.neurons import cnn, copies, deep, residual, with_images
from tests.helpers.toy import EQUAL, RAGGED, algorithm, federation, local, mlp, run, stacked, tensors


def test_models_that_began_apart_are_matched_and_their_mean_is_better_than_that_of_the_models_as_they_are() -> None:
    """One round of long training from different models; with one first model there is nothing to find."""
    fed = federation([40, 40, 40], build=mlp, training=local(epochs=40, lr=0.2))

    def after(**how: Any) -> tuple[float, float]:
        built: Any = algorithm("fedma", **how)
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


def test_layer_by_layer_of_reordered_copies_ends_with_the_model() -> None:
    fed = federation(EQUAL[:3], build=deep)
    w, models = copies(fed, 2)
    built = layerwise()
    state = built.init(fed)
    for round, group in enumerate([*neuron_groups(fed.family, fed.client_data.inputs), None]):
        fed.begin(round, 1.0)
        state = built.server_step(state, arrivals(models, num_examples=[8, 8, 8], upload=Models), fed)
        if group is not None:  # each client now takes its neurons of this layer in the server's order
            models = stacked(state.models)
    close(state.params, w)


def test_layer_by_layer_resumes_bit_for_bit() -> None:
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


def test_layer_by_layer_needs_a_chain() -> None:
    with pytest.raises(
        UserError, match=r"^algorithm=fedma with layerwise=true needs a chain .* which this Sequential is"
    ):
        layerwise().check(with_images(residual, 4))
    layerwise().check(federation([4], build=mlp))
    layerwise().check(with_images(cnn, 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sweeps": -1}, "sweeps must be >= 0, got -1"),
        ({"late_policy": "delta"}, "late_policy must be one of model, discard, got delta"),
        ({"layerwise": True}, "late_policy must be discard with layerwise true, got model"),
        ({"first_models": "x"}, "first_models must be one of same, own, got x"),
        ({"layerwise": True, "matched": False}, "matched must be true with layerwise true, got false"),
        ({"weighting": "x"}, "weighting must be one of size, uniform, got x"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    """Hydra wraps what the constructor raises."""
    with pytest.raises(InstantiationException) as error:
        algorithm("fedma", **changes)
    assert str(error.value.__cause__) == message
