"""What each method sends, and what its server computes and keeps."""

from typing import Any

import pytest
import torch

from docs.generate.composition import PERSONAL
from tests.helpers.identities import BUILDS
from tests.helpers.toy import CLASSES, EQUAL, FEATURES, algorithm, federation, home, normed, run, server_data


def test_payloads_of_the_methods_without_server_data() -> None:
    """Down and up in values of 4 bytes, per participant."""
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


GENERATOR = (4 + CLASSES) * 6 + 6 + 2 * 6 + 6 * 6 + 6 + 2 * 6  # with its batch norm statistics


@pytest.mark.parametrize(
    ("name", "down", "more"),
    [
        ("fednova", 0, 1),
        ("fedexp", 0, 0),
        ("fedsam", 0, 0),
        ("fedlaw", 0, 0),
        ("fedbe", 0, 0),
        ("fedgen", GENERATOR, CLASSES),
    ],
)
@pytest.mark.parametrize("build", BUILDS)
def test_payloads_are_those_of_the_table(name: str, down: int, more: int, build: Any) -> None:
    """A model each way, and what a method sends on top of it."""
    fed = federation(EQUAL, build=build)
    run(algorithm(name), fed, 1)
    metrics, size = fed.collect(), fed.family.size
    assert metrics["comm/download_mb"] == pytest.approx(len(EQUAL) * (size + down) * 4 / 1e6)
    assert metrics["comm/upload_mb"] == pytest.approx(len(EQUAL) * (size + more) * 4 / 1e6)


@pytest.mark.parametrize("name", ["ca2fl", "fedft", "hfcl", "feddf", "feddle"])
@pytest.mark.parametrize("build", [None, normed])
def test_payloads_are_one_model_each_way(name: str, build: Any) -> None:
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


@pytest.mark.parametrize("kept", ["none", "head"])
@pytest.mark.parametrize("name", PERSONAL)
def test_personal_methods_send_keep_and_train_what_their_table_says(name: str, kept: str) -> None:
    fed, cost = federation(EQUAL, build=normed, home=home(kept)), PERSONAL[name]
    built: Any = algorithm(name)
    state = run(built, fed, 3)
    metrics, own = fed.collect(), fed.home.state_dict()["settled"]
    last = 6 * CLASSES + CLASSES  # values of the last layer
    values = {"D": fed.family.size, "h": fed.home.size, "L": last, "__builtins__": {}}
    for way in ("comm/download_mb", "comm/upload_mb"):
        assert metrics[way] * 1e6 / 4 == pytest.approx(len(EQUAL) * eval(cost.sent, values))
    of_home = sum(len(row) for row in own.values()) / len(EQUAL)
    personal = getattr(state, "personal", {})
    store = fed.row_store("device", len(state.first)) if personal else None
    of_method = sum(len(store.get(ref)) for ref in personal.values()) / len(EQUAL) if store else 0
    assert of_home + of_method == eval(cost.kept, values)
    told = {"ditto": 2, "apfl": 2, "perfedavg": 2, "pfedme": built.inner_steps if name == "pfedme" else 0}
    assert name not in told or built.operations(fed, 1.0) == told[name]
