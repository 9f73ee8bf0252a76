"""Every key of every algorithm's config changes the result in some setting: none is read and forgotten."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import Tensor, nn

from fedlab_runner.models.blocks_mlp import BlocksMLP
from fedlab_runner.models.mlp import MLP
from tests.helpers.mixed import sliceable
from tests.helpers.toy import (
    ALGORITHMS,
    CLASSES,
    FEATURES,
    algorithm,
    default_home,
    federation,
    few_rounds,
    local,
    normed,
    run,
    vectors,
)

ROUNDS = 4
CHANGED_BY = 1e-7  # of a value of a model, at least
SAME = 1e-12  # of a value: sums in another order
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 5, "std": 1.5}
OWNED = np.array([[1, 1, 0], [0, 1, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1]], dtype=bool)


class Change(NamedTuple):
    """Another value of a key, and what else both runs have: other keys, and arguments of the toy federation."""

    value: Any
    keys: Mapping[str, Any] = {}
    fed: Mapping[str, Any] = {}


def blocks() -> nn.Module:
    """Extractors of blocks of 2, 2 and 1 of the toy's 5 features; the server can grow."""
    return BlocksMLP(None, None, [2, 2, 1], None, [4, 3], [6], [9]).build(FEATURES, 1, CLASSES)


BLOCKS: dict[str, Any] = {"sizes": [9, 6, 12, 5, 8], "cohort": 4, "build": blocks, "blocks": OWNED}
WIDTHS: dict[str, Any] = {"builds": [sliceable(3), sliceable(5)]}
FAR: dict[str, Any] = {"training": local(lr=1.5, epochs=6)}  # models whose neurons change places
AVERAGING = {"late_policy": Change("model"), "weighting": Change("uniform")}
SERVER_TRAINING = {"lr": Change(0.1), "epochs": Change(3), "batch_size": Change(9), "max_steps": Change(1)}
APART: dict[str, Any] = {"keep_own": True, "first_classifiers": "own"}
OWN, L2 = APART | {"gamma": 7.0}, APART | {"cost": "l2"}
CHOOSING: dict[str, Any] = {"memory": 3, "warmup": 0}
TORN: dict[str, Any] = {
    "sizes": [6, 3, 9, 4, 12],
    "std": 0.0,
    "training": local(lr=3.0, epochs=1),
}  # not all are newest
MEME = {"_target_": f"{MLP.__module__}.MLP", "channels": None, "image_size": None, "hidden": [3]}
FIRST: dict[str, Any] = {"first_models": "own"}

CHANGES: dict[str, dict[str, Change]] = {
    "apfl": AVERAGING
    | {"alpha": Change(0.2), "adaptive": Change(True), "server_lr": Change(0.5), "weighting": Change("size")},
    "ca2fl": {"buffer_size": Change(2), "server_lr": Change(0.5)},
    "center": {"lr": Change(0.1), "epochs": Change(2), "batch_size": Change(9), "max_steps": Change(1)},
    "dec_fedavg": {},
    "dec_fedprox": {"mu": Change(2.0)},
    "def_kt": {"epochs": Change(2)},
    "dfml": {
        "epochs": Change(2),
        "alpha_min": Change(0.3),
        "alpha_max": Change(0.5),
        "schedule": Change("fixed", {"period": None}),
        "scheduled": Change("both"),
        "period": Change(3),
        "growth": Change(0),
        "anneal_rounds": Change(5, {"schedule": "anneal", "anneal_rounds": 2, "period": None}),
        "peak_updates": Change(2, {"period": 2, "growth": 0}),
        "adaptive": Change("wsl"),
        "weighted": Change(False, fed=WIDTHS),
        "mutual": Change(False),
        "fixed_aggregator": Change(4),
        "regular": Change(True),
    },
    "ditto": AVERAGING | {"lam": Change(0.1), "server_lr": Change(0.5)},
    "dpsgd": {"order": Change("average_while_training")},
    "fedala": AVERAGING
    | {
        "share": Change(0.5),
        "layers": Change(2),
        "eta": Change(0.0),
        "threshold": Change(1e-9, {"window": 2}),
        "window": Change(2),
        "max_epochs": Change(3),
        "server_lr": Change(0.5),
    },
    "fedasync": {
        "alpha": Change(0.9),
        "staleness": Change("constant"),
        "a": Change(2.0),
        "b": Change(0.0, {"staleness": "hinge"}),
        "rho": Change(0.5),
    },
    "fedavg": AVERAGING | {"server_lr": Change(0.5)},
    "fedbabu": AVERAGING | {"server_lr": Change(0.5)},
    "fedbe": AVERAGING
    | SERVER_TRAINING
    | {
        "sampler": Change("dirichlet"),
        "num_samples": Change(0),
        "noise": Change(2.0),
        "alpha": Change(9.0, {"sampler": "dirichlet"}),
        "temperature": Change(1.0),
        "momentum": Change(0.0),
        "weight_decay": Change(0.1),
        "swa_start": Change(3),
        "swa_every": Change(1),
    },
    "fedbuff": {"buffer_size": Change(2), "server_lr": Change(0.5), "staleness_exp": Change(1.0)},
    "fedcda": {
        "memory": Change(1, CHOOSING, TORN),
        "batches": Change(3, CHOOSING, TORN),
        "warmup": Change(3, CHOOSING, TORN),
        "smoothness": Change(0.0, CHOOSING, TORN),
        "strategy": Change("newest", CHOOSING, TORN),
    },
    "feddf": AVERAGING
    | SERVER_TRAINING
    | {"temperature": Change(3.0), "cosine": Change(False), "clip_norm": Change(1e-9)},
    "feddle": SERVER_TRAINING
    | {
        "atlas_size": Change(2),
        "anchor_norm": Change(False),
        "importance_score": Change(False, {"atlas_size": 6}),
        "fallback": Change("zero"),
        "eta_fb": Change(0.5),
        "lam": Change(5.0),
    },
    "feddyn": {"alpha": Change(1.0)},
    "federated_dropout": {},
    "fedexp": {"eps": Change(0.0), "eval_avg_last2": Change(False), "weighting": Change("uniform")},
    "fedft": AVERAGING | SERVER_TRAINING,
    "fedgen": AVERAGING
    | {
        "alpha": Change(3.0),
        "beta": Change(0.0),
        "decay": Change(0.5),
        "gen_epochs": Change(1),
        "gen_batch_size": Change(3),
        "noise_size": Change(2),
        "hidden": Change(5),
        "eta": Change(0.0),
        "lr": Change(0.1),
        "lr_decay": Change(0.5),
        "weight_decay": Change(1.0),
        "steps": Change(1),
        "batch_size": Change(5),
    },
    "fedlaw": SERVER_TRAINING | {"lr_decay": Change(0.1, {"lr_decay_epochs": 1}), "lr_decay_epochs": Change(1)},
    "fedma": {
        "sweeps": Change(0, FIRST),
        "layerwise": Change(True, {"late_policy": "discard"}),
        "first_models": Change("own"),
        "matched": Change(False, FIRST),
        "late_policy": Change("discard"),
        "weighting": Change("uniform"),
    },
    "fednova": {"mu": Change(1.0), "weighting": Change("uniform")},
    "fedprox": AVERAGING | {"mu": Change(1.0), "server_lr": Change(0.5)},
    "fedrep": {
        "head_epochs": Change(1),
        "late_policy": Change("model"),
        "weighting": Change("size"),
        "server_lr": Change(0.5),
    },
    "fedrolex": {"order": Change("sorted", fed=WIDTHS)},
    "fedsam": AVERAGING | {"rho": Change(0.5), "server_lr": Change(0.5)},
    "fedwalk": {
        "base": Change("scaffold"),
        "tau": Change(-float("inf")),
        "beta": Change(0.0, {"tau": -1.5}),
        "unit": Change("step"),
        "steps": Change(2),
        "lr": Change(0.5),
        "batch_size": Change(9),
        "move_statistics": Change(False, fed={"build": normed}),
        "pretrain": Change(2),
    },
    "fml": {
        "alpha": Change(0.9),
        "beta": Change(0.9),
        "meme": Change(MEME),
    },
    "gamf": {
        "tau": Change(1.0, fed=FAR),
        "tau_decay": Change(0.1, fed=FAR),
        "tau_min": Change(0.04, fed=FAR),
        "sinkhorn_steps": Change(1, fed=FAR),
        "max_iterations": Change(1, fed=FAR),
        "pairwise": Change(True, fed=FAR),
        "late_policy": Change("discard"),
        "weighting": Change("size"),
    },
    "heterofl": {},
    "hfcl": AVERAGING,
    "hyfem": {
        "mu1": Change(1.0),
        "mu2": Change(5.0, fed=BLOCKS),
        "cost": Change("l2", APART, BLOCKS),
        "sigma": Change(0.1, OWN, BLOCKS),
        "sigma0": Change(0.1, OWN, BLOCKS),
        "gamma": Change(50.0, OWN, BLOCKS),
        "nu": Change(5.0, L2, BLOCKS),
        "sweeps": Change(0, OWN, BLOCKS),
        "include_outgoing": Change(True, OWN, BLOCKS),
        "keep_own": Change(True),
        "first_classifiers": Change("own", {"keep_own": True}, BLOCKS),
        "weighting": Change("uniform"),
        "send_all": Change(True, fed=BLOCKS),
    },
    "perfedavg": AVERAGING
    | {
        "inner_lr": Change(0.3),
        "variant": Change("hessian_free", {"inner_lr": 0.3}),
        "delta": Change(0.5, {"inner_lr": 0.3, "variant": "hessian_free"}),
        "server_lr": Change(0.5),
        "weighting": Change("size"),
    },
    "pfedme": AVERAGING
    | {
        "lam": Change(5.0),
        "inner_steps": Change(3),
        "inner_lr": Change(0.01),
        "warm_start": Change(False),
        "server_lr": Change(0.5),
        "weighting": Change("size"),
    },
    "qfedavg": {"q": Change(0.0), "lipschitz": Change(3.0), "weighting": Change("size")},
    "scaffold": {"option": Change(1), "server_lr": Change(0.5), "weighting": Change("size")},
    "standalone": {},
}

# Keys that say where or how often something is computed: the models stay.
PLACES = {
    "store_on": Change("host"),
    "cache_teachers": Change(False),
    "chunk_size": Change(2, {"store_on": "host"}),
}
# Keys that change nothing of the models, but what is said of them.
BESIDE = {("dfml", "regular"): "more models are evaluated", ("hyfem", "send_all"): "another download is counted"}
KEYS = {name: [each.name for each in fields(algorithm(name))] for name in ALGORITHMS}  # type: ignore[arg-type]


class Outcome(NamedTuple):
    """What is evaluated after a round, with the clients' own models, and what is written besides."""

    models: Tensor
    beside: object


def outcomes(name: str, change: Change, own: Mapping[str, Any]) -> Iterator[Outcome]:
    """Of a setting, with an algorithm's `own` values, after each round; only rounds that are asked for are computed."""
    how = dict(LATE | dict(change.fed))
    owned = how.pop("blocks", None)
    fed = federation(**how, home=default_home(name))
    fed.blocks = owned
    built = few_rounds(name, **(dict(change.keys) | dict(own)))
    state = built.init(fed)
    for round in range(ROUNDS):
        state = run(built, fed, 1, first=round, state=state)
        models = built.models(state)
        if isinstance(models, Tensor):
            models = models, built.client_models(state, fed, np.arange(fed.num_clients))
        yield Outcome(vectors(models), (fed.collect(), list(built.extra_eval_models(state, fed))))


@pytest.fixture(scope="module")
def usual() -> Callable[[str, Change], Iterator[Outcome]]:
    """The outcomes of a setting without the change; many keys have one setting."""
    known: dict[tuple[object, ...], Iterator[Outcome]] = {}

    def of(name: str, change: Change) -> Iterator[Outcome]:
        place = (name, str(change.keys), id(change.fed))
        known[place], mine = itertools.tee(known.get(place) or outcomes(name, change, {}))
        return mine

    return of


@pytest.mark.parametrize(
    ("name", "keys", "idle"),
    [
        ("fedasync", {"staleness": "constant", "a": 0.5}, "a"),
        ("fedasync", {"staleness": "constant", "b": 4.0}, "b"),
        ("fedasync", {"staleness": "polynomial", "b": 4.0}, "b"),
        ("fedbe", {"sampler": "gaussian", "alpha": 1.0}, "alpha"),
        ("fedbe", {"sampler": "dirichlet", "noise": 0.1}, "noise"),
        ("dfml", {"schedule": "half", "anneal_rounds": 5}, "anneal_rounds"),
        ("dfml", {"schedule": "fixed", "alpha_min": 0.1}, "alpha_min"),
        ("dfml", {"schedule": "fixed", "growth": 0}, "growth"),
        ("dfml", {"schedule": "anneal", "anneal_rounds": 5, "period": 4}, "period"),
        ("dfml", {"schedule": "fixed", "peak_updates": 2}, "peak_updates"),
        ("feddle", {"fallback": "zero", "eta_fb": 0.5}, "eta_fb"),
        ("fedma", {"matched": False, "sweeps": 3}, "sweeps"),
        ("hyfem", {"cost": "pfnm", "nu": 0.0}, "nu"),
        ("hyfem", {"cost": "l2", "sigma": 1.0}, "sigma"),
        ("hyfem", {"cost": "l2", "sigma0": 1.0}, "sigma0"),
        ("hyfem", {"cost": "l2", "gamma": 1.0}, "gamma"),
        ("perfedavg", {"variant": "first_order", "delta": 1e-3}, "delta"),
    ],
)
def test_a_key_of_another_choice_is_refused(name: str, keys: dict[str, Any], idle: str) -> None:
    with pytest.raises(ValueError, match=f"^{idle} .*null"):
        replace(algorithm(name), **keys)  # type: ignore[type-var]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_key_is_tried(name: str) -> None:
    """A new key needs a line in a table above."""
    assert CHANGES[name].keys() | (PLACES.keys() & set(KEYS[name])) == set(KEYS[name])
    assert not CHANGES[name].keys() & PLACES.keys()


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in ALGORITHMS for key in KEYS[name]])
def test_it_changes_the_result(name: str, key: str, usual: Callable[[str, Change], Iterator[Outcome]]) -> None:
    change = CHANGES[name].get(key) or PLACES[key]
    rounds = zip(usual(name, change), outcomes(name, change, {key: change.value}), strict=True)
    if key not in PLACES and (name, key) not in BESIDE:
        assert any(apart(one, other) > CHANGED_BY for one, other in rounds)
        return
    found = list(rounds)
    assert len(found) == ROUNDS and all(apart(one, other) < SAME for one, other in found)
    if (name, key) in BESIDE:
        assert any(one.beside != other.beside for one, other in found), BESIDE[name, key]


def apart(one: Outcome, other: Outcome) -> float:
    return float((one.models - other.models).abs().max())
