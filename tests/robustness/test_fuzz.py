"""Any config is refused in one line for each fault or runs a round; clocks and matchings keep their promises.

`pytest -m slow tests/robustness/test_fuzz.py` tries many more (FEDLAB_FUZZ of them), and others each time.
"""

import itertools
import math
import os
import re
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedlab_runner.algorithms.matching.assignment import hungarian
from fedlab_runner.algorithms.matching.graduated_assignment import Graduated
from fedlab_runner.algorithms.matching.pfnm import PFNM, Neurons, SquaredDistance, match
from fedlab_runner.config.build import build, conf_dir, run_id
from fedlab_runner.core.clock import RoundClock
from fedlab_runner.delays.constant import ConstantDelay
from fedlab_runner.delays.exponential import ExponentialDelay
from fedlab_runner.delays.half_normal import HalfNormalDelay
from fedlab_runner.delays.uniform import UniformDelay
from fedlab_runner.experiment.run import prepare
from fedlab_runner.models.mlp import MLP
from fedlab_runner.participation.over_selection import OverSelection
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.utils.errors import Diverged, UserError
from tests.algorithms.matching.test_structure import permuted, structure
from tests.helpers.composed import composed

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
LONG = settings(max_examples=int(os.environ.get("FEDLAB_FUZZ", "2000")), deadline=None, suppress_health_check=SLOW)


# Configs

HEAVY = {"timm", "resnet18", "resnet18_torchvision", "vit_lora", "vit_small", "preact_resnet", "blocks_resnet"}
GROUPS = {
    group: sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    for group in (
        *("algorithm", "server_data", "partition", "delay", "topology", "model", "loss", "augment"),
        *(
            "participation",
            "local",
            "lr_schedule",
            "server_optimizer",
            "aggregator",
            "executor",
            "analysis",
            "pruning",
            "dataset",
        ),
    )
}
# Of the other data sets nothing is on most machines, and what there is takes long.
GROUPS["dataset"] = ["digits", "synthetic", "femnist", "mnist"]
GROUPS["model"] = [name for name in GROUPS["model"] if name not in HEAVY]
TINY = (
    "dataset=synthetic",
    "dataset.num_classes=4",
    "dataset.num_train=90",
    "dataset.num_test=40",
    "dataset.image_size=8",
    "num_clients=9",
    "local.epochs=1",
    "device=cpu",
    "executor.workers=2",
)
LEAST = {
    "cohort_size": 3,
    "size": 12,
    "batch_size": 8,
    "num_blocks": 4,
    "blocks_per_client": 2,
    "classes_per_client": 3,
}
# What a value is replaced by, according to what it is; large whole numbers would only take long.
NONSENSE: list[Any] = [None, "", "nonsense", [], {}, [None], {"_target_": "os.getcwd"}, "${nowhere}", True, [1, "a"]]
WHOLE: list[Any] = [-(10**12), -1, 0, 1, 2, 3, 0.5, 1e400, math.nan]
REAL: list[Any] = [-1.0, -0.0, 0.0, 1e-300, 0.3, 1.0, 1.5, 1e30, math.inf, -math.inf, math.nan, 2]
UNTOUCHED = {"logger", "device", "download"}
# The other words that a word may be replaced by: the comments in conf list them, "adam  # sgd | adam | adamw".
WORDS: dict[str, set[str]] = {
    "precision": {"float32", "bfloat16", "float64"},
    "nonfinite": {"stop", "drop", "zero", "clip"},
}
for _path in conf_dir().rglob("*.yaml"):
    for _key, _comment in re.findall(r"^(\w+): [a-z_]+ +# (.*\|.*)", _path.read_text(), re.MULTILINE):
        WORDS.setdefault(_key, set()).update(re.findall(r"(?:^|: |\| )([a-z0-9_]+)", _comment))


@cache
def chosen(group: str, choice: str) -> DictConfig:
    """A choice as the command line composes it, which takes a hundred times as long as reading one file."""
    node = OmegaConf.load(conf_dir() / group / f"{choice}.yaml")
    assert isinstance(node, DictConfig)
    if "defaults" not in node:
        return node
    return composed(*(TINY[:-1]), f"{group}={choice}", small=False)[group]


@cache
def base() -> DictConfig:
    return composed(*TINY, "executor=processes", "model=logistic", "logger=none", "rounds=1", small=False)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """All values in a config that are no containers, and the lists, by where they are."""
    if isinstance(value, dict):
        return [each for key, child in value.items() if key != "_target_" for each in places(child, (*path, key))]
    return [(path, value)]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A composition of up to four other choices with up to three other values, as plain values."""
    cfg = OmegaConf.to_container(OmegaConf.masked_copy(base(), [key for key in base() if key != "hydra"]))
    assert isinstance(cfg, dict)
    cfg["executor"] = OmegaConf.to_container(chosen("executor", "loop"))
    for group in draw(st.lists(st.sampled_from(sorted(GROUPS)), max_size=4, unique=True)):
        cfg[group] = OmegaConf.to_container(chosen(group, draw(st.sampled_from(GROUPS[group]))))
    for path, value in places(cfg):
        if path[-1] in LEAST and isinstance(value, int):
            put(cfg, path, LEAST[path[-1]])
    for _ in range(draw(st.integers(0, 3))):
        path, value = draw(
            st.sampled_from([each for each in places(cfg) if not {"logger", "device", "download"} & {*each[0]}])
        )
        kind = WHOLE if isinstance(value, int) and not isinstance(value, bool) else REAL
        kind = sorted(WORDS[path[-1]]) if isinstance(value, str) and path[-1] in WORDS else kind
        put(cfg, path, draw(st.sampled_from(NONSENSE if draw(st.integers(0, 3)) == 0 else kind)))
    return cfg


def put(cfg: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        cfg = cfg[key]
    cfg[path[-1]] = value


def is_refused_or_runs(values: dict[str, Any]) -> str:
    """What became of it; anything but these is a fault of ours."""
    try:
        cfg = OmegaConf.create(values)
    except (OmegaConfBaseException, ValueError):
        return "no config"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, on the way to what is not finite
            components = build(cfg)
            assert run_id(cfg)
            simulation = prepare(components).simulation
            state, metrics = simulation._round(simulation._initial(), simulation.algorithm.round)
            metrics |= simulation._evaluate(state, 1)
    except UserError as error:
        lines = str(error).splitlines()
        assert lines and all(10 < len(line.strip()) < 1000 for line in lines), lines
        return "refused"
    except Diverged as error:
        assert "diverged in round 1" in str(error) and "\n" not in str(error)
        return "diverged"
    assert metrics and all(isinstance(value, int | float) for value in metrics.values())
    return "ran"


@QUICK
@given(configs())
def test_a_config_is_refused_or_runs(values: dict[str, Any]) -> None:
    is_refused_or_runs(values)


@pytest.mark.slow
@LONG
@given(configs())
def test_many_configs_are_refused_or_run(values: dict[str, Any]) -> None:
    is_refused_or_runs(values)


def test_the_search_sees_each_outcome() -> None:
    """So that the test above is not passed by refusing everything."""
    values = OmegaConf.to_container(OmegaConf.masked_copy(base(), [key for key in base() if key != "hydra"]))
    assert isinstance(values, dict)
    values["executor"] = OmegaConf.to_container(chosen("executor", "loop"))
    values["algorithm"] = OmegaConf.to_container(chosen("algorithm", "fedavg"))
    values["server_data"] = OmegaConf.to_container(chosen("server_data", "none"))
    values["participation"]["cohort_size"] = 3
    assert is_refused_or_runs(values) == "ran"
    values["local"]["lr"] = 1e38
    values["local"]["epochs"] = 5
    assert is_refused_or_runs(values) == "diverged"
    values["local"]["lr"] = -1
    assert is_refused_or_runs(values) == "refused"


# Clocks

delays = st.one_of(
    st.builds(ConstantDelay, draw=st.just("client"), rounds=st.integers(0, 5)),
    st.builds(ExponentialDelay, draw=st.sampled_from(["client", "dispatch"]), mean=st.floats(0.01, 20)),
    st.builds(HalfNormalDelay, draw=st.sampled_from(["client", "dispatch"]), std=st.floats(0, 20)),
    st.builds(
        UniformDelay, draw=st.sampled_from(["client", "dispatch"]), low=st.integers(0, 2), high=st.integers(2, 9)
    ),
)


@settings(QUICK, max_examples=100)
@given(st.data())
def test_clocks(data: st.DataObject) -> None:
    """Only idle clients with examples start, no more than asked, each is due once and not before it starts; a clock
    continues from any round as if nothing had been.
    """
    num_examples = np.array(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=15)))
    n, size, delay = len(num_examples), data.draw(st.integers(1, len(num_examples))), data.draw(delays)
    factor = data.draw(st.sampled_from([1.0, 1.3, n / size]))
    some = (
        UniformParticipation(size, None, 0)
        if math.ceil(factor * size) > n or data.draw(st.booleans())
        else OverSelection(size, factor, 0)
    )
    seed, saved_at = data.draw(st.integers(0, 2**32)), data.draw(st.integers(0, 14))
    clock, resumed = (RoundClock(num_examples, some, delay, seed) for _ in range(2))
    due = np.full(n, -1)
    for round in range(15):
        if round == saved_at:
            resumed.load_state_dict(clock.state_dict())
        starts = clock.start(round)
        if round >= saved_at:
            again = resumed.start(round)
            assert np.array_equal(again.ids, starts.ids) and np.array_equal(again.due, starts.due)
        idle = (due < round) & (num_examples > 0)
        assert len(set(starts.ids.tolist())) == len(starts.ids) <= len(starts.asked) <= idle.sum()
        assert idle[starts.ids].all() and (starts.due >= round).all()
        assert len(starts.ids) == min(size, int(idle.sum()))
        due[starts.ids] = starts.due


# Matching


@settings(QUICK, max_examples=60)
@given(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, 6))), st.integers(0, 2**32))
def test_an_assignment_is_the_best_of_all(shape: tuple[int, int], seed: int) -> None:
    gains = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    columns = hungarian(gains)
    assert len(set(columns.tolist())) == shape[0]
    best = max(
        sum(float(gains[i, j]) for i, j in enumerate(order))
        for order in itertools.permutations(range(shape[1]), shape[0])
    )
    assert sum(float(gains[i, j]) for i, j in enumerate(columns)) == pytest.approx(best)


@settings(QUICK, max_examples=60)
@given(st.integers(0, 2**32), st.data())
def test_an_assignment_of_anything_is_one(seed: int, data: st.DataObject) -> None:
    """Of values that are not finite too: a model that diverged must not end in a traceback here."""
    n = data.draw(st.integers(1, 5))
    values = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0, 1.0])
    gains = torch.tensor(data.draw(st.lists(st.lists(values, min_size=n + 1, max_size=n + 1), min_size=n, max_size=n)))
    assert len(set(hungarian(gains).tolist())) == n


@settings(QUICK, max_examples=60)
@given(st.integers(0, 2**32), st.data())
def test_matchings(seed: int, data: st.DataObject) -> None:
    """Each client's neurons are different neurons of the server's, all of which are somebody's, within the limits."""
    rng = np.random.default_rng(seed)
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    d, scale = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([0.0, 1e-9, 1.0, 1e9]))
    columns = [np.sort(rng.choice(d, rng.integers(1, d + 1), replace=False)) for _ in sizes]
    clients = [
        Neurons(torch.from_numpy(scale * rng.normal(size=(n, len(own)))), torch.from_numpy(own), 1 / len(sizes))
        for n, own in zip(sizes, columns, strict=True)
    ]
    gain = data.draw(st.sampled_from([PFNM(1.0, 1.0, 7.0, torch.zeros(d, dtype=torch.float64)), SquaredDistance(0.1)]))
    limit = data.draw(st.integers(max(sizes), sum(sizes) + 2))
    how: dict[str, Any] = {"num_columns": d, "sweeps": 3, "limit": limit}
    found = match(clients, gain, **how, rng=np.random.default_rng(seed))
    assert max(sizes) <= found.width <= min(limit, sum(sizes)) and math.isfinite(found.gain)
    assert [len(set(a.tolist())) for a in found.assignments] == sizes
    assert set(np.concatenate(found.assignments).tolist()) == set(range(found.width))
    again = match(clients, gain, **how, rng=np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(found.assignments, again.assignments, strict=True))


@settings(QUICK, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.sampled_from([0.0, 1e-9, 1.0, 1e3, 1e90, math.nan, math.inf]),
    st.booleans(),
)
def test_graduated_assignments(seed: int, count: int, scale: float, pairwise: bool) -> None:
    """One to one in every layer, the first model's as they are, and functions stay; for diverged models too."""
    family, groups, inputs = structure(MLP(None, None, [4, 3]), channels=1, size=3)
    models = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, family.size))) * scale
    matching = Graduated(0.05, 0.7, 0.005, sinkhorn_steps=5, max_iterations=20, pairwise=pairwise)
    found = matching.assign(models, groups, np.random.default_rng(seed))
    assert found.iterations <= 20 and len(found.orders) == len(groups)
    for group, orders in zip(groups, found.orders, strict=True):
        assert orders[0].tolist() == list(range(group.size))
        assert all(sorted(order) == list(range(group.size)) for order in orders)
    again = matching.assign(models, groups, np.random.default_rng(seed))
    for orders, same in zip(found.orders, again.orders, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(orders, same, strict=True))
    for k, model in enumerate(models if 0 < scale < 1e9 else ()):
        moved = permuted(model, groups, [orders[k] for orders in found.orders])
        torch.testing.assert_close(family.predict(moved, inputs), family.predict(model, inputs), rtol=1e-9, atol=1e-12)
