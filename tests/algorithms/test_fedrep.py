"""FedRep: where it is FedAvg or FedPer, what each of its two phases moves, and what it costs."""

from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.core.federation import Federation
from tests.helpers.identities import BUILDS, EXECUTORS, LATE, close
from tests.helpers.toy import EQUAL, algorithm, federation, home, local, normed, run

ADAMW: dict[str, Any] = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}
OPTIMIZERS: list[dict[str, Any]] = [{"momentum": 0.5, "weight_decay": 0.1}, ADAMW]


def own(name: str, fed: Federation, rounds: int = 3, **keys: Any) -> torch.Tensor:
    """All clients' own models after some rounds [N, D]."""
    built = algorithm(name, weighting="size", **keys)
    return built.client_models(run(built, fed, rounds), fed, np.arange(fed.num_clients))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("keys", [{"head_epochs": 0}, {"head_epochs": 4}])
def test_without_a_home_it_is_fedavg_to_the_bit(build: Any, keys: dict[str, int]) -> None:
    feds = [federation(**LATE, build=build) for _ in range(2)]
    assert torch.equal(own("fedrep", feds[0], **keys), own("fedavg", feds[1]))
    assert feds[0].collect() == feds[1].collect()


@pytest.mark.parametrize("build", BUILDS)
def test_without_head_epochs_it_is_fedbabu_and_with_them_neither_fedbabu_nor_fedper(build: Any) -> None:
    def after(name: str, **keys: int) -> torch.Tensor:
        return own(name, federation(**LATE, build=build, home=home("head")), **keys)

    bare, babu, per, rep = after("fedrep", head_epochs=0), after("fedbabu"), after("fedavg"), after("fedrep")
    assert torch.equal(bare, babu)
    assert not torch.allclose(rep, babu) and not torch.allclose(rep, per)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("training", OPTIMIZERS, ids=["sgd", "adamw"])
@pytest.mark.parametrize("kept", ["head", "norm", "body"])
def test_a_phase_leaves_what_it_does_not_train_as_it_was_to_the_bit(
    kept: str, training: dict[str, Any], executor: Any
) -> None:
    """With decay and momentum, and batch norm's statistics."""
    fed = federation(EQUAL, build=normed, home=home(kept), training=local(**training), executor=executor)
    x, mask = fed.family.init(0), fed.home.mask(fed.family)
    fed.begin(0, 1.0)
    cohort = fed.start_cohort((x,))
    names = cohort.at_home
    body = tuple(name for name in fed.family.layout if name not in names)
    assert torch.equal(cohort.again(cohort.local).train(x, frozen=body), x.expand(4, -1))  # nothing leaves the client
    between = fed.home.starts(x, cohort.client_ids)
    assert torch.equal(between[:, ~mask], x[~mask].expand(4, -1)) and (between[:, mask] != x[mask]).all(1).any()
    sent = cohort.train(x, frozen=names)
    after = fed.home.starts(x, cohort.client_ids)
    assert torch.equal(after[:, mask], between[:, mask]) and (sent[:, ~mask] != x[~mask]).any(1).all()


def test_a_frozen_body_saves_its_gradients_and_a_frozen_head_its_own() -> None:
    """Of two linear layers F x H and H x C, in operations of an example: 2 FH + 2 HC forward, once more for each
    gradient by weights, and 2 HC for the gradient by the body's outputs.
    """
    f, h, c, n = 5, 6, 3, 8 * 4 * 2  # examples in two epochs
    forward = 2 * f * h + 2 * h * c
    expected = {"head": forward + 2 * h * c, "body": forward + 2 * f * h + 2 * h * c}
    for frozen, phase in ((("0.weight", "0.bias"), "head"), (("2.weight", "2.bias"), "body")):
        for executor in EXECUTORS:
            fed = federation(EQUAL, executor=executor)
            fed.begin(0, 1.0)
            x = fed.family.init(0)
            fed.start_cohort((x,)).train(x, frozen=frozen)
            assert fed.collect()["cost/client_gflops"] * 1e9 == pytest.approx(n * expected[phase]), phase


def test_everything_at_home_is_trained_for_the_heads_epochs_alone() -> None:
    fed = federation(EQUAL, build=normed, home=home("prefixes", prefixes=[""]))
    rep = own("fedrep", fed, 1, head_epochs=2)
    alone = federation(EQUAL, build=normed)
    alone.begin(0, 1.0)
    x = alone.family.init(0)
    cohort = alone.start_cohort((x,))
    close(rep[torch.from_numpy(cohort.client_ids)], cohort.again(local(epochs=2)).train(x))


def test_the_phases_have_minibatches_of_their_own() -> None:
    fed = federation()
    fed.begin(0, 1.0)
    x = fed.family.init(0)
    cohort = fed.start_cohort((x,))
    assert not torch.allclose(cohort.train(x).clone(), cohort.again(local()).train(x))
