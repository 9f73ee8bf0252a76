"""FedALA: where it is FedAvg, which weights it learns, on what, and for how long; what clients keep."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop
from fedlab_runner.experiment.resource_estimate import _needs
from tests.helpers.identities import BUILDS, LATE, close
from tests.helpers.toy import EQUAL, RAGGED, algorithm, federation, home, local, normed, run

FAST = {"eta": 5.0, "threshold": 0.003, "window": 2}  # weights that move, soon enough
LOWER = 5 * 6 + 6  # parameters of the toy's first layer


class Watched(Loop):
    """A loop that notes all work but local training on a client's own minibatches."""

    def __init__(self) -> None:
        super().__init__(compile=False)
        object.__setattr__(self, "seen", [])

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        if work.optimizer is not None:
            self.seen.append(work)  # type: ignore[attr-defined]
        return super().train(work)


def kept(state: Any, fed: Federation) -> dict[int, Tensor]:
    """What each client keeps [R]."""
    store = fed.row_store("device", len(state.first))
    return {client: store.get(ref) for client, ref in state.personal.items()}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("policy", ["delta", "model", "discard"])
def test_with_weights_that_are_never_learned_it_is_fedavg(build: Any, policy: str) -> None:
    ala, avg = (
        run(algorithm(name, late_policy=policy, **keys), federation(**LATE, build=build), 6)
        for name, keys in (("fedala", {"eta": 0.0, "layers": 9}), ("fedavg", {}))
    )
    close(ala.params, avg.params, atol=1e-12)
    own = [row[-1] for row in kept(ala, federation(**LATE, build=build)).values()]
    assert max(own) == 2, "someone has been there twice"


@pytest.mark.parametrize("build", BUILDS)
def test_with_all_mixed_layers_at_home_it_is_fedper_and_with_more_it_mixes_the_rest(build: Any) -> None:
    """At home a client's own model and the received one are the same."""
    how: dict[str, Any] = {**LATE, "build": build, "home": home("head")}
    per, ala, more = (
        (built, fed, run(built, fed, 6))
        for built, fed in (
            (algorithm("fedavg"), federation(**how)),
            (algorithm("fedala", **FAST), federation(**how)),
            (algorithm("fedala", **FAST, layers=2), federation(**how)),
        )
    )
    close(ala[2].params, per[2].params, atol=1e-12)
    assert not torch.allclose(more[2].params, per[2].params)
    mask = ala[1].home.mask(ala[1].family)
    own = [built.client_models(state, fed, np.arange(10))[:, mask] for built, fed, state in (per, ala)]
    close(own[1], own[0], atol=1e-12)


def test_weights_are_those_of_what_is_shared() -> None:
    watched = Watched()
    fed = federation(build=normed, home=home("norm"), executor=watched)
    state = run(algorithm("fedala", **FAST, layers=9), fed, 4)
    p, kept_names = fed.family.num_params, set(fed.home.names(fed.family))
    at_home = fed.home.mask(fed.family)[:p]
    rows = torch.stack(list(kept(state, fed).values()))
    weights = rows[:, fed.family.size : -1]
    assert not weights[:, at_home].any() and ((weights > 0) & (weights < 1))[:, ~at_home].any()
    frozen = [set(work.frozen) for work in watched.seen]  # type: ignore[attr-defined]
    assert all({name for name in kept_names if "running" not in name} <= each for each in frozen)
    built, watched = algorithm("fedala", **FAST), Watched()  # the norm layer is below the mixed one
    fed = federation(build=normed, home=home("norm"), executor=watched)
    state = run(built, fed, 1)
    own = fed.home.fill(state.params, np.arange(len(RAGGED)))[:, :p]
    run(built, fed, 1, first=1, state=state)
    for work in watched.seen:  # type: ignore[attr-defined]
        assert torch.equal(work.per_client[0][:, at_home], own[work.ids][:, at_home])
    assert watched.seen  # type: ignore[attr-defined]


def test_the_first_round_is_fedavg_to_the_bit_and_the_second_is_not() -> None:
    ala, avg = algorithm("fedala", **FAST), algorithm("fedavg")
    assert torch.equal(run(ala, federation(), 1).params, run(avg, federation(), 1).params)
    assert not torch.allclose(run(ala, federation(), 2).params, run(avg, federation(), 2).params)


def test_weights_are_learned_until_the_losses_settle_and_then_for_one_epoch() -> None:
    """Each client stops for itself; a client in its first round learns nothing."""
    watched = Watched()
    fed = federation(executor=watched, participation=None)
    built, state = algorithm("fedala", **FAST), None
    epochs = []
    for round in range(3):
        watched.seen.clear()  # type: ignore[attr-defined]
        state = run(built, fed, 1, first=round, state=state)
        count = np.zeros(len(RAGGED), np.int64)
        for work in watched.seen:  # type: ignore[attr-defined]
            count[work.ids] += 1
        epochs.append(count)
    assert not epochs[0].any() and (epochs[2] == 1).all()
    assert epochs[1].min() >= 3 and len(set(epochs[1].tolist())) > 1


def test_weights_stay_in_their_bounds_and_are_those_of_the_last_layers() -> None:
    fed = federation()
    state = run(algorithm("fedala", **FAST), fed, 4)
    rows = torch.stack(list(kept(state, fed).values()))
    weights, d = rows[:, fed.family.size : -1], fed.family.size
    assert weights.shape == (8, d - LOWER) and (weights >= 0).all() and (weights <= 1).all()
    assert (weights == 0).any() and ((weights > 0) & (weights < 1)).any()
    for layers, size in ((2, d), (7, d)):
        assert len(algorithm("fedala", layers=layers).init(fed).first) == d + size + 1


@pytest.mark.parametrize("share", [1.0, 0.8, 0.01])
def test_weights_are_learned_on_a_share_of_the_clients_own_examples(share: float) -> None:
    """Other examples in each round, and the same in the epochs of one."""
    watched = Watched()
    fed = federation(executor=watched)
    run(algorithm("fedala", **FAST, share=share, max_epochs=3), fed, 3)
    drawn: dict[int, list[set[int]]] = {1: [], 2: []}
    for work in watched.seen:  # type: ignore[attr-defined]
        assert work.client_data.num_examples[work.ids].tolist() == [
            max(1, int(share * fed.client_data.num_examples[i])) for i in work.ids
        ]
        for client in work.ids.tolist():
            assert set(work.client_data.members(client)) <= set(fed.client_data.members(client))
        if 7 in work.ids:
            drawn[work.round].append(set(work.client_data.members(7).tolist()))
    assert all(each == drawn[1][0] for each in drawn[1]) and (drawn[1][0] != drawn[2][0]) == (share < 1)


def test_layers_below_cost_no_gradient_while_weights_are_learned() -> None:
    """Of F x H and H x C: 2 FH + 2 HC forward, 2 HC for the gradient of the last layer."""
    f, h, c, n = 5, 6, 3, 8 * 4
    fed = federation(EQUAL, training=local(epochs=1))
    built = algorithm("fedala", share=1.0, eta=1.0)
    state = run(built, fed, 2)
    fed.begin(2, 1.0)
    built.round(state, fed)  # an epoch of the weights, an epoch of the model
    training = n * (2 * f * h * 2 + 2 * h * c * 3)
    learning = n * (2 * f * h + 2 * h * c * 2)
    assert fed.collect()["cost/client_gflops"] * 1e9 == pytest.approx(training + learning)


def test_personal_models_are_those_that_clients_trained_last_and_the_servers_before() -> None:
    fed = federation([8] * 6, cohort=2, build=normed)
    built: Any = algorithm("fedala", **FAST)
    state = run(built, fed, 1)
    mine = built.client_models(state, fed, np.arange(6))
    there = torch.tensor(sorted(state.personal))
    assert len(there) == 2 and (mine[there] != built.init(fed).params).any(1).all()
    mean = mine[there].mean(0)
    close(mean, state.params)  # the server's is the mean of theirs


def test_a_model_each_way_is_sent_and_the_server_keeps_nothing() -> None:
    fed = federation(EQUAL, build=normed)
    run(algorithm("fedala"), fed, 3)
    for way in ("comm/download_mb", "comm/upload_mb"):
        assert fed.collect()[way] == pytest.approx(4 * fed.family.size * 4 / 1e6)
    assert fed.collect()["cost/server_cache_mb"] == 0


def test_rows_on_disk_give_the_same_bits_and_need_no_memory(tmp_path: Path) -> None:
    states = []
    for place in ("device", "host", "disk"):
        fed = federation(**LATE, folder=tmp_path / place)
        built = algorithm("fedala", **FAST, store_on=place)
        state = run(built, fed, 5)
        states.append([state.params, built.client_models(state, fed, np.arange(10))])
    pairs = [pair for other in states[1:] for pair in zip(states[0], other, strict=True)]
    assert all(torch.equal(*pair) for pair in pairs)
    fed = federation(EQUAL)
    needs = {place: _needs(algorithm("fedala", store_on=place), fed, 3) for place in ("device", "disk")}
    rows, on_disk = ({n.place: n.bytes for n in each if n.what.startswith("the clients'")} for each in needs.values())
    assert rows["host"] == on_disk["disk"] == 8 * 4 * (2 * fed.family.size - LOWER + 1) and "host" not in on_disk


def test_examples_that_are_drawn_are_a_sample_without_replacement() -> None:
    x = torch.arange(20.0).view(20, 1)
    data = ClientData(x, torch.zeros(20, dtype=torch.int64), np.split(np.arange(20), [12]), x.device)
    rngs = [np.random.default_rng(1), np.random.default_rng(2)]
    drawn = data.drawn(np.array([1, 0]), 0.5, rngs)
    assert drawn.num_examples.tolist() == [6, 4] and data.num_examples.tolist() == [12, 8]
    assert len(set(drawn.members(0))) == 6 and set(drawn.members(1)) <= set(range(12, 20))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"share": 0.0}, r"share must be in \(0, 1\], got 0.0"),
        ({"layers": 0}, "layers must be >= 1, got 0"),
        ({"eta": -1.0}, "eta must be >= 0, got -1.0"),
        ({"window": 0}, "window must be >= 1, got 0"),
        ({"max_epochs": 0}, "max_epochs must be >= 1, got 0"),
    ],
)
def test_bad_values_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        algorithm("fedala", **keys)
