"""The methods that match neurons (FedMA, GAMF): their common behaviour and identities."""

from typing import Any

import pytest
import torch
from torch import nn

from fedlab_runner.algorithms.shared.averaging import Models
from fedlab_runner.utils.errors import UserError
from tests.helpers.identities import arrivals, close
from tests.helpers.neurons import cnn, copies, deep, residual, with_images
from tests.helpers.toy import CLASSES, EQUAL, FEATURES, RAGGED, algorithm, federation, local, normed, run

BOTH = ["fedma", "gamf"]
FEDERATIONS = {
    "mlp": lambda: federation([4]),
    "batch_norm": lambda: federation([4], build=deep),
    "cnn": lambda: with_images(cnn, 4),
    "resnet": lambda: with_images(residual, 4),
}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("which", FEDERATIONS)
def test_the_mean_of_reordered_copies_is_the_model(name: str, which: str) -> None:
    fed = FEDERATIONS[which]()
    built: Any = algorithm(name)
    w, models = copies(fed, 2)
    fed.begin(0, 1.0)
    after = built.server_step(built.init(fed), arrivals(models, num_examples=[9, 4, 2], upload=Models), fed).params
    torch.testing.assert_close(after, w, rtol=0, atol=1e-12)
    inputs = fed.client_data.inputs
    torch.testing.assert_close(
        fed.family.predict(after, inputs), fed.family.predict(models[2], inputs), rtol=1e-9, atol=0
    )
    metrics = fed.collect()
    assert 0.4 < metrics["algorithm/moved_neurons"] < 0.67 and metrics["cost/server_gflops"] > 0
    averaged = arrivals(models, num_examples=[9, 4, 2], upload=Models).mean(models)
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
def test_nothing_arrives_and_nothing_changes(name: str) -> None:
    fed = federation([4])
    built: Any = algorithm(name)
    state = built.init(fed)
    assert torch.equal(
        built.server_step(state, arrivals(state.params.new_zeros(0, len(state.params)), upload=Models), fed).params,
        state.params,
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
