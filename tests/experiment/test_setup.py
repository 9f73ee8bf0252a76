"""What a run says of its images and its model before it trains."""

import logging
import random
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.analyses.none import NoAnalysis
from fedlab_runner.config.build import build
from fedlab_runner.core.clock import RoundClock
from fedlab_runner.core.global_rng import kept_globals
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets.label_noise import add_label_noise
from fedlab_runner.experiment import setup
from fedlab_runner.experiment.run_data import run_data
from fedlab_runner.experiment.setup import draw_topology, prepare
from fedlab_runner.models.base import Architecture
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.topologies.random_regular import RandomRegular
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import SMALL, composed

SYNTHETIC = ("dataset=synthetic", "dataset.num_train=120", "dataset.num_test=10", "algorithm=fedavg", "delay=none")
ALONE = (*SMALL[1:], *SYNTHETIC, "partition=iid", "server_data=none")


def prepared(*overrides: str) -> None:
    prepare(build(composed(*ALONE, *overrides, small=False)))


@pytest.mark.parametrize(
    ("data", "model", "said"),
    [
        ((3, 32), (1, 16), "images of 3x32x32 are converted to 1x16x16, "),
        ((3, 16), (1, 16), "images of 3x16x16 are converted to 1x16x16, "),
        ((1, 32), (3, 16), "images of 1x32x32 are converted to 3x16x16, "),
        ((3, 16), ("null", "null"), None),
        ((1, 8), (3, 16), None),
    ],
)
def test_one_line_says_where_images_lose_channels_or_pixels(caplog, data, model, said) -> None:
    with caplog.at_level(logging.INFO, "fedlab_runner"):
        prepared(
            *(f"{node}.channels={form[0]}" for node, form in (("dataset", data), ("model", model))),
            *(f"{node}.image_size={form[1]}" for node, form in (("dataset", data), ("model", model))),
        )
    found = [each.getMessage() for each in caplog.records if "images" in each.getMessage()]
    assert len(found) == (said is not None) and all(each.startswith(str(said)) for each in found)


@pytest.mark.parametrize("form", [(), ("model.channels=null",), ("model.channels=null", "model.image_size=null")])
def test_a_model_of_images_given_feature_vectors_names_the_models_that_take_them(form) -> None:
    with pytest.raises(UserError, match=r"^model must take vectors of 2 features, .*: choose model=logistic or model="):
        prepared("dataset.features=2", *form)


@dataclass(frozen=True)
class Nobody:
    """A partition that gives no client an example."""

    def split(
        self, strata: np.ndarray, users: np.ndarray | None, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        return [np.empty(0, np.int64)] * num_clients


@pytest.mark.parametrize("drop_empty", [True, False])
def test_a_partition_that_gives_nobody_an_example_is_one_line(drop_empty: bool) -> None:
    components = build(composed(*ALONE, f"drop_empty={drop_empty}", small=False))
    with pytest.raises(UserError, match=r"^Nobody.split must give some client an example, got a list of 12$"):
        prepare(replace(components, partition=Nobody()))


ONE_SENDER = "participation.cohort_size=1"  # of two clients that may train


@dataclass(frozen=True)
class Gaps:
    """A partition that gives examples only to client 0 and one more of 14."""

    second: int = 13

    def split(self, strata: np.ndarray, *how: Any) -> list[np.ndarray]:
        found = [np.empty(0, np.int64)] * 14
        found[0], found[self.second] = np.array_split(np.arange(len(strata)), 2)
        return found


def test_the_clients_that_are_left_out_are_named(caplog: pytest.LogCaptureFixture) -> None:
    components = replace(build(composed(*ALONE, "num_clients=14", small=False)), partition=Gaps())
    prepare(replace(components, participation=UniformParticipation(2, None, 0)))
    said = "12 of 14 clients got no examples: the run leaves them out (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...) and numbers "
    assert f"{said}the others anew, from 0 to 1 (drop_empty)" in caplog.messages


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("participation", ("participation=fixed", "participation.clients=[0]")),
        ("delay", ("delay=from_file", "delay.path=delays.txt")),
        ("topology", (ONE_SENDER, "algorithm=dec_fedavg", "topology=edge_list", "topology.path=links.txt")),
        ("topology", (ONE_SENDER, "algorithm=dec_fedavg", "topology=star", "topology.center=13")),
        ("algorithm", (ONE_SENDER, "algorithm=dfml", "algorithm.fixed_aggregator=0")),
    ],
)
def test_no_client_that_the_config_has_by_number_becomes_another(
    key: str, config: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "delays.txt").write_text("0\n" * 14)
    (tmp_path / "links.txt").write_text("".join(f"0 {client}\n" for client in range(1, 14)))
    alone = [each for each in ALONE if "cohort_size" not in each]
    components = replace(build(composed(*alone, "num_clients=14", *config, small=False)), partition=Gaps())
    with pytest.raises(UserError, match=rf"^drop_empty must be false with this {key}, which has clients by number: "):
        prepare(components)
    prepare(replace(components, drop_empty=False))


@pytest.mark.parametrize(
    ("second", "config"),
    [
        (1, ("participation=fixed", "participation.clients=[1]")),
        (13, ("algorithm=fedavg", "topology=edge_list", "topology.path=unused")),
        (13, ("algorithm=dec_fedavg", "delay=from_file", "delay.path=unused")),
    ],
)
def test_clients_that_keep_their_numbers_or_whose_numbers_nobody_reads_are_left_out(
    second: int,
    config: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    alone = [each for each in ALONE if "cohort_size" not in each]
    components = build(composed(*alone, "num_clients=14", *config, small=False))
    if "participation=fixed" not in config:
        components = replace(components, participation=UniformParticipation(1, None, 0))
    prepare(replace(components, partition=Gaps(second)))
    assert ("numbers the others anew" in caplog.text) == (second == 13) and "leaves them out" in caplog.text


@dataclass(frozen=True)
class Forgotten(Architecture):
    """An architecture whose `build` returns nothing."""

    def build(self, channels: int, image_size: int, num_classes: int) -> Any:
        return None


def test_a_network_that_is_no_module_is_one_line() -> None:
    components = build(composed(*ALONE, small=False))
    with pytest.raises(UserError, match=r"^Forgotten\.build must give an nn\.Module, got None$"):
        prepare(replace(components, model=Forgotten(None, None)))


@dataclass(frozen=True)
class Alone(NoAnalysis):
    """An analysis that gives its metrics and no memory."""

    def observe(self, *now: Any) -> Any:
        return {"analysis/n": 1.0}


def test_a_runs_analysis_is_held_against_its_contract() -> None:
    components = build(composed(*ALONE, small=False))
    simulation = prepare(replace(components, analysis=Alone())).simulation
    with pytest.raises(UserError, match=r"^Alone.observe must give the next memory and a dict of metrics"):
        simulation._analyse(simulation._initial(), None, begins=True)


def test_what_is_drawn_before_the_first_round_follows_the_seed() -> None:
    drawn = ("label_noise=0.3", "train_fraction=0.5", "evaluation.held_out=60", "delay.std=3")
    drawn += ("client_split.test=0.25", "client_split.validation=0.25")
    servers = ("server_data=in_domain", "server_data.size=40", "algorithm=fedavg", "seed=3")
    c = build(composed("dataset=digits", *servers, *drawn))
    prepared = prepare(c)
    fed, data = prepared.simulation.fed, c.dataset.load(3).thinned(0.5, 3)
    noisy = add_label_noise(data.train, 0.3, 10, 3)
    mine, rest = data.hold_out(40, 3)
    split = c.partition.split(data.train.strata.numpy(), None, 12, generator(3, Purpose.PARTITION))
    parts = c.client_split.split(split, data.train, data.test, 3)
    clock = RoundClock(fed.client_data.num_examples, c.participation, c.delay, 3)
    assert torch.equal(fed.client_data.targets, noisy.targets) and fed.seed == 3
    assert fed.server_data is not None and torch.equal(fed.server_data.targets, mine.targets)
    assert torch.equal(prepared.data.test.targets, rest.hold_out(20, 3)[1].test.targets)
    assert fed.validation is not None and fed.client_tests is not None
    held = (
        [each.members(client) for client in range(12)] for each in (fed.client_data, fed.validation, fed.client_tests)
    )
    for found, wanted in zip((prepared.split, *held), (split, *parts[:3]), strict=True):
        assert list(map(list, found)) == list(map(list, wanted))
    for ours, theirs in zip(fed._clock.ahead(0, 3), clock.ahead(0, 3), strict=True):
        assert ours.ids.tolist() == theirs.ids.tolist() and ours.due.tolist() == theirs.due.tolist()
    alone: Any = SimpleNamespace(decentralized=True, name="gossip")
    topology = draw_topology(replace(c, algorithm=alone, topology=RandomRegular(4)), 12)
    assert topology is not None and np.array_equal(topology, RandomRegular(4).draw(generator(3, Purpose.TOPOLOGY), 12))


@kept_globals()
def test_the_first_round_draws_other_global_numbers_than_the_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[float, ...]] = []

    def drawn() -> tuple[float, ...]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    def load(components: Any) -> Any:
        loaded.append(drawn())
        return run_data(components)

    monkeypatch.setattr(setup, "run_data", load)
    fed = prepare(build(composed(*SMALL, "algorithm=fedavg"))).simulation.fed
    fed.begin(0, 1.0)
    assert not set(loaded[0]) & set(drawn())
