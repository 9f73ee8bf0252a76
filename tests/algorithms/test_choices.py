"""Every algorithm with every home, server optimiser and aggregator that it accepts, with and without late clients."""

from itertools import product
from typing import Any, NamedTuple

import pytest
import torch

from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.core.federation import Federation
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import (
    AGGREGATORS,
    ALGORITHMS,
    HOMES,
    SERVER_OPTIMIZERS,
    aggregator,
    algorithm,
    federation,
    few_rounds,
    home,
    normed,
    run,
    server_optimizer,
    tensors,
    vectors,
)

ROUNDS, SAVED = 4, 2  # of a run, and before its checkpoint
SUMS = "sums"  # the mean, of sums that are formed part of the cohort by part
FIRST_LAYER: dict[str, dict[str, Any]] = {"prefixes": {"prefixes": ["0"]}}  # keys of homes that need some


class Choice(NamedTuple):
    """One command line's choices."""

    home: str
    optimizer: str
    rule: str
    std: float  # of the delays


def accepted(name: str) -> list[Choice]:
    """What an algorithm accepts; where clients have no server nobody is late."""
    method = algorithm(name)
    homes = HOMES if method.home_fault() is None else ["none"]
    optimizers = SERVER_OPTIMIZERS if method.makes_server_steps else ["none"]
    rules = [SUMS] * method.takes_sums() + (AGGREGATORS if method.takes_aggregator() else ["mean"])
    delays = (0.0,) if method.decentralized else (0.0, 2.0)
    return [Choice(*each) for each in product(homes, optimizers, rules, delays)]


def covering() -> list[tuple[str, Choice]]:
    """One choice of each algorithm, of which all together have every home, server optimiser and aggregator."""
    return [(name, choices[i % len(choices)]) for i, name in enumerate(ALGORITHMS) if (choices := accepted(name))]


def made(choice: Choice) -> Federation:
    keys = FIRST_LAYER.get(choice.home, {})
    return federation(
        [6, 3, 9, 5, 12, 8],
        cohort=3,
        build=normed,
        std=choice.std,
        home=home(choice.home, **keys),
        optimizer=server_optimizer(choice.optimizer),
        rule=aggregator("mean", sum_every=2) if choice.rule == SUMS else aggregator(choice.rule),
    )


def check(name: str, choice: Choice) -> None:
    """A run is finite, and one that is resumed in the middle has the same bits and the same metrics."""
    fed, method = made(choice), few_rounds(name)
    try:
        method.check(fed)
    except UserError as refused:
        assert "\n" not in str(refused) and name in str(refused) and choice.home == "head" and name == "fedgen"
        return
    state = run(method, fed, SAVED)
    saved = pack({"state": state, "fed": fed.state_dict()})
    state = run(method, fed, ROUNDS - SAVED, first=SAVED, state=state)
    assert torch.isfinite(vectors(method.models(state))).all()

    again, method = made(choice), few_rounds(name)
    other = unpack(saved["state"], like=method.init(again))
    again.load_state_dict(saved["fed"])
    other = run(method, again, ROUNDS - SAVED, first=SAVED, state=other)
    mine, its = (tensors([s, f.state_dict()["server_steps"]["moments"]]) for s, f in ((state, fed), (other, again)))
    assert len(mine) == len(its) and all(torch.equal(a, b) for a, b in zip(mine, its, strict=True))
    assert fed.collect() == again.collect()


def test_the_covering_choices_have_them_all() -> None:
    chosen = [choice for _, choice in covering()]
    assert {each.home for each in chosen} == set(HOMES)
    assert {each.optimizer for each in chosen} == set(SERVER_OPTIMIZERS)
    assert {each.rule for each in chosen} >= set(AGGREGATORS)
    assert {each.std for each in chosen} == {0.0, 2.0}


@pytest.mark.parametrize(("name", "choice"), covering(), ids=str)
def test_a_choice_of_each(name: str, choice: Choice) -> None:
    check(name, choice)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_choices(name: str) -> None:
    for choice in accepted(name):
        check(name, choice)
