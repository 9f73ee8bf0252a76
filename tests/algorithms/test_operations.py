"""The operations that a run reports are those that PyTorch counts while clients and server compute."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedlab_runner.algorithms.shared.server_training import SERVER_STREAMS
from fedlab_runner.core import cohort, trainer
from fedlab_runner.delays.constant import ConstantDelay
from fedlab_runner.executors.loop import Loop
from tests.helpers.toy import ALGORITHMS, CLASSES, default_home, federation, few_rounds, local, mlp, server_data

SIZES = (1, 5, 2, 9, 4, 6)  # of the clients
MORE = {"server": server_data(37), "leash": server_data(35, seed=13, num_classes=4)}  # with a partial minibatch
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ALGORITHMS),
    ("apfl", {"adaptive": True}),
    ("fedma", {"layerwise": True, "late_policy": "discard"}),
    ("perfedavg", {"variant": "hessian_free"}),
    ("scaffold", {"option": 1}),
]
# Methods whose server trains or asks teachers, and what it does besides for each update: sums of what no product adds.
SERVERS: dict[str, int] = {"center": 0, "fedbe": 0, "feddf": 0, "fedft": 0, "fedlaw": 0, "fedwalk": 0, "hfcl": 0}
SERVERS["fedgen"] = 2 * CLASSES  # numbers of labels


def convolutional() -> nn.Module:
    first = [nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 2), nn.BatchNorm1d(4), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv1d(4, 2, 2), nn.Flatten(), nn.Linear(6, CLASSES))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What PyTorch has counted of the clients' training and of their losses, one client at a time without padding."""
    found, training, losses = Counter[str](), Loop.train, cohort.client_losses

    def train(self: Loop, work: Any) -> Any:
        with FlopCounterMode(display=False) as mode:
            trained = training(self, work)
        found["server" if work.client_data.streams is SERVER_STREAMS else "clients"] += mode.get_total_flops()
        return trained

    def one_by_one(family: Any, data: Any, ids: Any, models: torch.Tensor) -> torch.Tensor:
        rows = models.expand(len(ids), -1)
        with FlopCounterMode(display=False) as mode:
            each = [losses(family, data, ids[k : k + 1], rows[k : k + 1]) for k in range(len(ids))]
        found["clients"] += mode.get_total_flops()
        return torch.cat(each) if each else losses(family, data, ids, models)

    monkeypatch.setattr(Loop, "train", train)
    for module in (cohort, trainer):
        monkeypatch.setattr(module, "client_losses", one_by_one)
    return found


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_clients_compute_what_the_run_says(name: str, changes: dict[str, Any], counted: Counter[str]) -> None:
    how_long, late = local(epochs=1, batch_size=4), {"cohort": 3, "std": 1.0}
    fed = federation(SIZES, **late, **MORE, training=how_long, build=convolutional, home=default_home(name))
    how = few_rounds(name, **changes)
    state = how.init(fed)
    for round in range(3):
        fed.begin(round, 1.0)
        counted.clear()
        state = how.round(state, fed)
        assert round_off(fed.collect().get("cost/client_gflops", 0.0)) == counted["clients"]
    assert counted["clients"] > 0 or name == "center"


@pytest.mark.parametrize("name", SERVERS)
def test_servers_compute_what_the_run_says(name: str, counted: Counter[str]) -> None:
    """Adding up the updates is a product too. In the third round the run knows what all steps cost, and counts none."""
    fed, how = federation(SIZES, cohort=3, build=mlp, **MORE), few_rounds(name)
    state = how.init(fed)
    for round in range(3):
        fed.begin(round, 1.0)
        counted.clear()
        with FlopCounterMode(display=False) as mode:
            state = how.round(state, fed)
    of_server = mode.get_total_flops() - counted["clients"]
    assert round_off(fed.collect()["cost/server_gflops"]) == of_server + 3 * SERVERS[name] > 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_without_clients_costs_nothing_and_says_so(name: str) -> None:
    """So that means over rounds count it. All clients are busy in the second and third round, or know nobody."""
    nobody = np.zeros((3, 3), dtype=bool)
    how = few_rounds(name, **({"epochs": 1} if name == "center" else {}))
    late = ConstantDelay(rounds=3, draw="client")
    fed = federation([5, 2, 9], cohort=1 if how.decentralized else 3, delay=late, topology=nobody)
    state, told = how.init(fed), []
    for round in range(3):
        fed.begin(round, 1.0)
        state = how.round(state, fed)
        told.append({key: value for key, value in fed.collect().items() if key.startswith(("comm/", "cost/"))})
    assert told[0].keys() == told[1].keys() == told[2].keys()
    assert told[2].get("comm/upload_mb", 0) == 0 and (how.decentralized or told[2].get("cost/client_gflops", 0) == 0)


def round_off(gflops: float) -> int:
    return round(1e9 * gflops)
