"""What a run says of its images and its model before it trains."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fedlab_runner.analyses.none import NoAnalysis
from fedlab_runner.config.build import build
from fedlab_runner.experiment.setup import prepare
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


@dataclass(frozen=True)
class Alone(NoAnalysis):
    """An analysis that gives its metrics and no memory."""

    def observe(self, *now: Any) -> Any:
        return {"analysis/n": 1.0}


def test_a_runs_analysis_is_held_against_its_contract() -> None:
    components = build(composed(*ALONE, small=False))
    simulation = prepare(replace(components, analysis=Alone())).simulation
    with pytest.raises(UserError, match=r"^Alone.observe must give the next memory and a dict of metrics"):
        simulation._analyse(simulation._initial(), begins=True)
