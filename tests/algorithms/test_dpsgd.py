"""D-PSGD: on a complete graph it is FedAvg with everyone; elsewhere it agrees as fast as the spectral gap says."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlab_runner.algorithms import dpsgd
from fedlab_runner.algorithms.dpsgd import ORDERS, DPSGDState
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.topologies.graphs import metropolis, spectral_gap
from fedlab_runner.topologies.random_regular import RandomRegular
from fedlab_runner.topologies.ring import Ring
from fedlab_runner.topologies.star import Star
from fedlab_runner.utils.errors import UserError
from tests.helpers.identities import BUILDS, close
from tests.helpers.mixed import distinct, mixed, sliceable
from tests.helpers.toy import RAGGED, algorithm, federation, home, local, normed, run, stacked, tensors

N = len(RAGGED)
GRAPHS = {"ring": Ring(), "star": Star(2), "regular": RandomRegular(3)}
STILL = local(lr=1e-300)  # clients' training leaves their models as they are
WIDTHS = tuple(sliceable(width, norm=True) for width in (4, 2, 1))


def linked(graph: str, clients: int = N) -> np.ndarray:
    return GRAPHS[graph].draw(generator(0, Purpose.TOPOLOGY), clients)


@pytest.mark.parametrize("build", BUILDS)
def test_on_the_complete_graph_it_is_fedavg_with_everyone(build: Any) -> None:
    everyone = run(algorithm("dpsgd"), federation(build=build), 4).models
    server = run(algorithm("fedavg", weighting="uniform"), federation(build=build), 4).params
    for row in everyone.values():
        torch.testing.assert_close(row, server, rtol=0, atol=1e-12)


def test_on_the_complete_graph_with_widths_it_is_heterofl_with_everyone() -> None:
    mine = run(algorithm("dpsgd"), mixed(builds=WIDTHS), 3)
    theirs = run(algorithm("heterofl"), mixed(builds=WIDTHS, cohort=6), 3)
    close(mine.models, theirs.models, 1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("builds", [(normed,), WIDTHS], ids=["one width", "widths"])
def test_gossip_keeps_the_mean_and_agrees_as_fast_as_the_spectral_gap_says(
    builds: Sequence[Any], graph: str, order: str
) -> None:
    """Without training; of each value over the clients that have it, here those of the widest and the only width."""
    topology, built = linked(graph), algorithm("dpsgd", order=order)
    fed = mixed(RAGGED, builds, topology=topology, training=STILL)
    first, p = distinct(fed), fed.family.num_params
    state = DPSGDState(first)
    rate = 1 - spectral_gap(metropolis(topology))
    before = spread(stacked(first)) if len(builds) == 1 else None
    for round in range(5):
        state = run(built, fed, 1, first=round, state=state)
        if len(builds) == 1:
            models = stacked(state.models)
            after = spread(models[:, :p])
            torch.testing.assert_close(models[:, :p].mean(0), stacked(first)[:, :p].mean(0), rtol=0, atol=1e-12)
            assert before is not None and after <= rate * before + 1e-12
            before = after
            measured = fed.collect()["algorithm/consensus_distance"]
            assert measured == pytest.approx(float(spread(models)) / N**0.5)
    assert all(not torch.equal(one, state.models[i]) for i, one in first.items())


def spread(models: Tensor) -> Tensor:
    """The distance of models [N, D] from their mean."""
    return (models - models.mean(0)).norm()


@pytest.mark.parametrize("order", ORDERS)
def test_with_everything_at_home_clients_have_the_bits_that_they_have_alone(order: str) -> None:
    fed = federation(RAGGED, topology=linked("ring"), home=home("prefixes", prefixes=[""]))
    mine = run(algorithm("dpsgd", order=order), fed, 3).models
    assert torch.equal(stacked(mine), stacked(run(algorithm("standalone"), federation(RAGGED), 3).own))


@pytest.mark.parametrize("graph", GRAPHS)
def test_averages_without_the_zeros_of_the_weights_are_the_same(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    products, found = Counter[str](), []
    whole = Tensor.to_sparse
    monkeypatch.setattr(Tensor, "to_sparse", lambda weights: products.update(["sparse"]) or whole(weights))
    for sparse in (0, 10**9):
        monkeypatch.setattr(dpsgd, "SPARSE", sparse)
        found.append(run(algorithm("dpsgd"), mixed(RAGGED, (normed,), topology=linked(graph)), 3).models)
    close(*found, 1e-12)
    assert products == {"sparse": 3}


@pytest.mark.parametrize("builds", [(normed,), WIDTHS], ids=["one width", "widths"])
def test_a_client_hears_its_neighbours_alone(builds: Sequence[Any]) -> None:
    fed = mixed(RAGGED, builds, topology=linked("ring"))
    first = distinct(fed)
    other = first | {4: first[4] + 1.0}
    one, two = (run(algorithm("dpsgd"), fed, 1, state=DPSGDState(each)).models for each in (first, other))
    moved = {i for i in range(N) if not torch.equal(one[i], two[i])}
    assert moved == {3, 4, 5}


def test_who_does_not_take_part_keeps_its_model_and_is_not_heard() -> None:
    fed = federation([6] * 9, cohort=4, topology=linked("ring", 9))
    state = DPSGDState(distinct(fed))
    fed.begin(0, 1.0)
    there = set(fed.sample_clients(np.arange(9)).tolist())
    before, after = state.models, run(algorithm("dpsgd"), fed, 1, state=state).models
    assert {i for i in range(9) if not torch.equal(before[i], after[i])} == there
    links = sum((i + 1) % 9 in there for i in there)
    assert fed.collect()["algorithm/neighbours"] == pytest.approx(2 * links / 4)


@pytest.mark.parametrize("builds", [(normed,), WIDTHS], ids=["one width", "widths"])
def test_each_link_carries_the_values_that_both_have(builds: Sequence[Any]) -> None:
    fed = mixed(RAGGED, builds, topology=linked("ring"))
    run(algorithm("dpsgd"), fed, 1)
    size = [fed.families[i % len(builds)].size for i in range(N)]
    values = 2 * sum(min(size[i], size[(i + 1) % N]) for i in range(N))
    assert fed.collect()["comm/upload_mb"] == pytest.approx(4 * values / 1e6)
    assert fed.collect()["comm/models"] == 2 * N


def test_all_may_take_part_and_models_of_other_kinds_are_refused() -> None:
    algorithm("dpsgd").check(federation())
    with pytest.raises(UserError, match=r"^algorithm=dpsgd needs models that differ in width alone: [^\n]*$"):
        algorithm("dpsgd").check(mixed())
    with pytest.raises(Exception, match="order must be one of train_then_average, average_while_training"):
        algorithm("dpsgd", order="never")


def test_the_spectral_gap_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlab_runner"):
        algorithm("dpsgd").check(federation(topology=linked("ring")))
    gap = 2 / 3 * (1 - np.cos(2 * np.pi / N))
    assert f"the spectral gap {gap:.3g} " in caplog.text


def test_mixed_runs_resume_bit_for_bit() -> None:
    def fed() -> Federation:
        return mixed(builds=WIDTHS, cohort=4, topology=linked("ring", 7))

    whole = run(algorithm("dpsgd"), fed(), 4)
    again = run(algorithm("dpsgd"), fed(), 2, first=2, state=run(algorithm("dpsgd"), fed(), 2))
    assert all(torch.equal(a, b) for a, b in zip(tensors(whole), tensors(again), strict=True))
