"""Properties that every algorithm has; an exception is in a table with its reason, and must need to be there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlab_runner.algorithms import fedgen
from fedlab_runner.algorithms.shared.averaging import LATE_POLICIES
from fedlab_runner.core import cohort, rng
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.rng import Purpose, generators
from fedlab_runner.delays.base import Delay
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.participation.fixed import FixedParticipation
from tests.helpers.mixed import sliceable
from tests.helpers.toy import (
    ALGORITHMS,
    ANY_OPTIMIZER,
    algorithm,
    default_home,
    federation,
    few_rounds,
    local,
    normed,
    run,
    tensors,
)

ROUNDS = 3
EQUAL_UP_TO = 1e-8  # of a value: sums in another order
DIFFERENT_BY = 1e-7  # of a value, where a property does not hold
NO_LR = 1e-300  # a learning rate that is allowed and moves nothing
MORE_BATCHES = (Purpose.PERSONAL_BATCHES, Purpose.INNER_BATCHES, Purpose.HESSIAN_BATCHES)
DECENTRALIZED = {name for name in ALGORITHMS if algorithm(name).decentralized}


class Result(NamedTuple):
    """What a federation has come to."""

    models: list[Tensor]  # the server's, or those of all clients
    own: list[Tensor]  # where there is a server: what each client uses itself
    metrics: list[dict[str, float]]  # of each round


def result(
    name: str,
    parts: Sequence[np.ndarray],
    *,
    streams: Sequence[int] | None = None,
    asked: Sequence[int] | None = None,
    aggregators: Sequence[int] = (0,) * ROUNDS,
    lr: float = 1.0,
    held_out: int = 0,
    keys: Mapping[str, Any] | None = None,
    **how: Any,
) -> Result:
    """After some rounds of clients with these `parts` of the examples, of which those `asked` (all) take part.

    `streams`: client i draws from the random streams of client streams[i]. `aggregators` are those of an algorithm
    without a server, in each round. Of the others `held_out` never take part.
    """
    asked = list(range(len(parts)) if asked is None else asked)
    fed = federation(split=parts, participation=FixedParticipation(asked, held_out), home=default_home(name), **how)
    built, metrics = few_rounds(name, **(keys or {})), []
    with drawing(range(len(parts)) if streams is None else streams):
        state = built.init(fed)
        for round, aggregator in enumerate(aggregators):
            fed.begin(round, lr)
            state = built.round(state._replace(aggregator=aggregator) if hasattr(state, "aggregator") else state, fed)
            metrics.append(fed.collect())
        models, own = built.models(state), list[Tensor]()
        if isinstance(models, torch.Tensor):
            own = list(built.client_models(state, fed, np.arange(len(parts))))
    return Result([models] if isinstance(models, torch.Tensor) else [*tensors(models)], own, metrics)


@contextmanager
def drawing(streams: Sequence[int]) -> Iterator[None]:
    """Client i draws minibatches and the algorithm's random numbers from the streams of client streams[i]."""
    key, of_clients = rng._key, (Purpose.BATCHES, *MORE_BATCHES, Purpose.DISTILLATION, Purpose.SUBMODEL)

    def shared(seed: int, purpose: Purpose, round: int, client: int) -> tuple[int, int]:
        return key(seed, purpose, round, streams[client] if purpose in of_clients else client)

    def of_algorithm(seed: int, purpose: Purpose, round: int, clients: np.ndarray, step: int = 0) -> Any:
        return generators(seed, purpose, round, np.array(streams)[clients], step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rng, "_key", shared)
        for module in (cohort, fedgen):  # whose draws of ALGORITHM are a client's
            patch.setattr(module, "generators", of_algorithm)
        yield


def apart(mine: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """The largest difference between two values."""
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(mine, theirs, strict=True) if a.numel())


def check(name: str, exceptions: Mapping[str, str], mine: Iterable[Tensor], theirs: Iterable[Tensor]) -> None:
    """That an algorithm has the property, or is an exception."""
    difference = apart(mine, theirs)
    if name in exceptions:
        assert difference > DIFFERENT_BY, f"{name} is no exception: {exceptions[name]}"
    else:
        assert difference < EQUAL_UP_TO


def everything(found: Result) -> list[Tensor]:
    """All models, those too that the clients use themselves."""
    return found.models + found.own


def same_metrics(mine: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-8, abs=1e-9)


def cut(*sizes: int) -> list[np.ndarray]:
    """Examples 0 to n in parts of these sizes."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


# --- who the clients are ---

PARTS = cut(9, 6, 12, 7, 10, 8, 11, 1)
HOLDER = [6, 3, 0, 5, 2, 7, 4, 1]  # of each part, in the other federation: an even client's part goes to an even one
LATE_BY = [0, 1, 0, 2, 0, 0, 1, 0]  # rounds, of each part's client


@dataclass(frozen=True)
class Given(Delay):
    """The delays of all clients."""

    rounds: tuple[int, ...]

    def sample(self, rng: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        delays: np.ndarray = np.array(self.rounds)[clients]
        return delays


def of_parts(name: str, holder: Sequence[int], order: Sequence[int]) -> Result:
    """Part p belongs to client holder[p]; the parts' clients are asked in this order. Clients' models by part."""
    part = np.argsort(holder).tolist()  # of each client
    more: dict[str, Any] = {}
    if name in DECENTRALIZED and name != "def_kt":  # clients of two widths
        more["builds"] = [sliceable(3), sliceable(5)]
    if name == "def_kt":  # part p sends to p + 4: all draw among one
        pairs = np.zeros((8, 8), dtype=bool)
        for p in range(4):
            pairs[holder[p], holder[p + 4]] = pairs[holder[p + 4], holder[p]] = True
        more["topology"], order = pairs, [p for p in order if p < 4]
    found = result(
        name,
        [PARTS[p] for p in part],
        streams=part,
        asked=[holder[p] for p in order],
        aggregators=[holder[p] for p in (1, 4, 7)],
        delay=Given("client", tuple(LATE_BY[p] for p in part)),
        training=local(epochs=1),
        **more,
    )
    many = len(found.models) > 1
    own = [found.own[client] for client in holder] if found.own else []
    return Result([found.models[client] for client in holder] if many else found.models, own, found.metrics)


ORDER_COUNTS = {
    "fedasync": "mixes one model after another",
    "fedbuff": "the last updates wait in the buffer",
    "ca2fl": "the last updates wait in the buffer",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_numbers_and_the_order_of_clients_do_not_matter(name: str) -> None:
    """Examples, delays and random streams go with a client's number."""
    usual = of_parts(name, range(8), range(8))
    numbered, backwards = of_parts(name, HOLDER, range(8)), of_parts(name, range(8), range(8)[::-1])
    check(name, {}, everything(usual), everything(numbered))
    same_metrics(usual.metrics, numbered.metrics)
    check(name, ORDER_COUNTS, everything(usual), everything(backwards))


# --- how many clients there are ---

WHOLE = local(epochs=2, batch_size=64)  # full-batch steps
COUNT_ALIKE = "clients count alike, however many examples they have"
HALVES_COUNT = {
    "apfl": COUNT_ALIKE,
    "ca2fl": COUNT_ALIKE,
    "def_kt": "a receiver takes one model",
    "dfml": "each model teaches",
    "dpsgd": COUNT_ALIKE,
    "fedasync": "each arrival is mixed in",
    "fedbe": "teachers count alike",
    "fedbuff": COUNT_ALIKE,
    "fedcda": COUNT_ALIKE,
    "feddf": "teachers count alike",
    "feddle": COUNT_ALIKE,
    "feddyn": COUNT_ALIKE,
    "federated_dropout": COUNT_ALIKE,
    "fedrep": COUNT_ALIKE,
    "fedrolex": COUNT_ALIKE,
    "gamf": COUNT_ALIKE,
    "heterofl": COUNT_ALIKE,
    "perfedavg": COUNT_ALIKE,
    "pfedme": COUNT_ALIKE,
    "qfedavg": COUNT_ALIKE,
    "scaffold": COUNT_ALIKE,
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_split_into_halves_that_are_alike_leaves_full_batch_steps_the_same(name: str) -> None:
    """Clients b and c stay as they are; c aggregates."""
    half, b, c = cut(6, 7, 9)
    keys = SAME_DRAWS.get(name)
    one = result(name, [np.tile(half, 2), b, c], aggregators=[2] * 3, training=WHOLE, keys=keys)
    other = result(name, [half, half, b, c], streams=[0, 0, 1, 2], aggregators=[3] * 3, training=WHOLE, keys=keys)
    check(name, HALVES_COUNT, one.models[-2:] + one.own[-2:], other.models[-2:] + other.own[-2:])


# What makes the random numbers of a full-batch step the same for another number of examples.
SAME_DRAWS: dict[str, dict[str, Any]] = {"fedala": {"share": 1.0}, "fedgen": {"beta": 0.0}}

NUMBER_COUNTS = {
    "fedasync": "mixes one model after another",
    "fedbe": "sampled models teach beside the clients'",
    "feddle": "a coefficient for each update: more of them go further",
    "hfcl": "the server counts as one client more",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_clients_that_are_alike_are_one_client(name: str) -> None:
    """With the same minibatches. Without a server it takes two to meet: then four are two."""
    least, found = 2 if name in DECENTRALIZED else 1, []
    for n in (least, least + 2):
        asked = range(n // 2) if name == "def_kt" else range(n)
        keys: dict[str, Any] = {"buffer_size": n} if name in ("ca2fl", "fedbuff") else {}
        if name == "feddf":  # three that are alike teach the rounding of their mean, and Adam follows
            keys = {"max_steps": 1}
        models, own, _ = result(name, cut(20) * n, streams=[0] * n, asked=asked, keys=keys)
        found.append([models[0], models[-1], *own[:1], *own[-1:]])
    check(name, NUMBER_COUNTS, *found)


SIZE_COUNTS = {"hfcl": "the server has examples of its own, which are not more"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_examples_that_all_occur_three_times_change_nothing_and_a_client_that_is_held_out_is_none(name: str) -> None:
    """The clients' weights times 3, full-batch steps that are the same, and as many clients that count."""
    of_other = [] if name in ("def_kt", "hyfem") else [np.arange(6)]  # Def-KT asks half, HyFEM refuses it
    parts, keys = cut(5, 9, 2, 14), SAME_DRAWS.get(name)
    how: dict[str, Any] = {"training": WHOLE, "delay": Given("client", (0, 1, 0, 0, 0)), "keys": keys}
    how["asked"] = [0, 1] if name == "def_kt" else range(4)
    one = result(name, parts, **how)
    other = result(name, [*(np.tile(part, 3) for part in parts), *of_other], held_out=len(of_other), **how)
    of_four = [found[:4] if len(found) > 4 else found for found in (other.models, other.own)]
    check(name, SIZE_COUNTS, everything(one), [*of_four[0], *of_four[1]])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_without_examples_is_none(name: str) -> None:
    """It never starts (`drop_empty=false`), and no mean over all clients counts it."""
    parts, asked = cut(5, 9, 2, 14, 7, 6), [1, 3, 4] if name in DECENTRALIZED else range(6)
    one = result(name, parts, asked=asked)
    other = result(name, [*parts, np.arange(0), np.arange(0)], asked=asked)
    of_six = [found[:6] if len(found) > 6 else found for found in (other.models, other.own)]
    check(name, {}, everything(one), [*of_six[0], *of_six[1]])
    same_metrics(one.metrics, other.metrics)


# --- limits ---

# Servers that train with a learning rate of their own: where the clients stand still they continue.
TRAINS_ON = {
    "center": "on its examples",
    "fedbe": "an ensemble of samples",
    "fedft": "on its examples",
    "fedlaw": "learns a shrinkage",
    "perfedavg": "a client's own model is one step of inner_lr away",
    "pfedme": "a client's own model has inner_lr",
}


OWN_LR = {name: {each.name for each in fields(algorithm(name))} & {"lr", "inner_lr"} for name in ALGORITHMS}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        pytest.param(name, own, id=f"{name}-{'and_server' if own else 'clients'}")
        for name in ALGORITHMS
        for own in ([False, True] if OWN_LR[name] else [False])
    ],
)
def test_without_a_learning_rate_models_stay(name: str, own: bool) -> None:
    keys = dict.fromkeys(OWN_LR[name] if own else (), NO_LR)
    how: dict[str, Any] = {"delay": Given("client", (0, 1, 0, 0)), "keys": keys, "training": local(weight_decay=0.1)}
    found = result(name, cut(5, 9, 2, 14), lr=0.0, **how)
    start = federation().family.init(0)
    check(name, {} if own else TRAINS_ON, everything(found), [start] * len(everything(found)))


POLICY = [name for name in ALGORITHMS if "late_policy" in {each.name for each in fields(algorithm(name))}]


@pytest.mark.parametrize("name", POLICY)
def test_late_policies_agree_when_nothing_is_late(name: str) -> None:
    found = []
    for policy in LATE_POLICIES:
        try:
            keys = {"late_policy": policy}
            found.append(everything(result(name, cut(5, 9, 2, 14), keys=keys, build=normed)))
        except Exception as error:  # FedMA and GAMF have two of them
            assert "late_policy must be" in str(error)
    assert len(found) >= 2
    for other in found[1:]:
        check(name, {}, found[0], other)


# --- where it is computed ---

LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 5, "std": 1.5}
ONE_BY_ONE = Loop(compile=False)
PAIRS = Vectorized(chunk_size=2, compile=False)
SETTINGS: dict[str, tuple[dict[str, Any], Executor, Executor]] = {  # and another executor, and workers with theirs
    "momentum": (
        {"training": local(epochs=1, momentum=0.5, weight_decay=0.01)},
        Vectorized(chunk_size=None, compile=False),
        Processes(workers=3, inner=ONE_BY_ONE),
    ),
    "batch_norm": (
        {"training": local(epochs=1), "build": normed},
        PAIRS,
        Processes(workers=2, inner=PAIRS),
    ),
}


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param(name, setting, marks=[pytest.mark.slow] * ((i + j) % 2))
        for i, name in enumerate(ALGORITHMS)
        for j, setting in enumerate(SETTINGS)
    ],
)
def test_executors_chunks_and_workers_agree(name: str, setting: str) -> None:
    """Everything in the State, with clients in flight; workers to the bit with the executor that they share out.

    Each algorithm in one of the two settings; in the other one it is a slow test.
    """
    how, other, workers = SETTINGS[setting]
    found: list[tuple[list[Tensor], dict[str, float]]] = []
    for executor in (ONE_BY_ONE, other, workers):
        fed = federation(**LATE, **how, executor=executor, home=default_home(name))
        state = run(few_rounds(name, **ANY_OPTIMIZER.get(name, {})), fed, 2)
        found.append((tensors(state), fed.collect()))
    (reference, metrics), (states, theirs), (of_workers, also) = found
    check(name, {}, reference, states)
    assert theirs == pytest.approx(metrics, rel=1e-6, abs=1e-7)
    inner, expected = found[1] if setting == "batch_norm" else found[0]
    assert all(torch.equal(a, b) for a, b in zip(of_workers, inner, strict=True)) and also == expected
