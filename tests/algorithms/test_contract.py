"""What every algorithm must do, over all that exist: a new file in conf/algorithm is tested without a line here."""

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedlab_runner.algorithms
from fedlab_runner.checkpoints.state_packing import differs, pack, unpack
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import (
    ALGORITHMS,
    RAGGED,
    algorithm,
    default_home,
    evaluate,
    federation,
    few_rounds,
    local,
    normed,
    run,
    tensors,
    vectors,
)

TRAINS_ON_THE_SERVER = {"center", "fedft", "fedwalk", "hfcl"}  # with or without clients
SOURCES = sorted(Path(fedlab_runner.algorithms.__path__[0]).glob("[a-z]*.py"))
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 2.0}


def test_every_algorithm_has_one_file_and_one_config() -> None:
    assert [path.stem for path in SOURCES] == ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_is_hyperparameters_and_nothing_else(name: str) -> None:
    built: Any = algorithm(name)
    assert built.__dataclass_params__.frozen
    assert {f.name for f in fields(built)} == set(vars(built))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_imports_no_other_algorithm(path: Path) -> None:
    imported = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    assert [each for each in imported if re.match(r"fedlab_runner\.algorithms(?!\.(shared|matching)\b)", each)] == []


# What the toy needs to get anywhere: the defaults are for hundreds of steps.
FASTER: dict[str, dict[str, Any]] = {"center": {"lr": 0.02}, "def_kt": {"epochs": 2}, "dfml": {"epochs": 2}}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns(name: str) -> None:
    fed = federation([20] * 6, cohort=4, std=1.0, training=local(lr=0.3), home=default_home(name))
    built = algorithm(name, **FASTER.get(name, {}))
    state = run(built, fed, 7)
    before, after = (evaluate(built, each, fed)["test/accuracy"] for each in (built.init(fed), state))
    assert after > max(0.75, before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resumed_equals_uninterrupted_bit_for_bit_and_another_seed_does_not(name: str) -> None:
    """Through a checkpoint's plain values, with clients in flight; in no State has a later round changed anything."""
    whole_fed = federation(**LATE, home=default_home(name))
    whole = few_rounds(name).init(whole_fed)
    saved, values, collected, models = [], [], [], []
    for round in range(6):
        saved.append(pack({"state": whole, "fed": whole_fed.state_dict()}))
        values.append([t.clone() for t in tensors(whole)])
        models.append(vectors(few_rounds(name).models(whole)).clone())
        collected.append(whole_fed.collect() if round else {})
        whole = run(few_rounds(name), whole_fed, 1, first=round, state=whole) if round < 5 else whole
    for round, last in ((0, 2), (2, 5), (4, 5)):
        fed = federation(**LATE, home=default_home(name))
        first = few_rounds(name).init(fed)
        checkpoint = saved[round]
        assert all(torch.equal(a, b) for a, b in zip(tensors(first), values[0], strict=True))
        assert not differs(checkpoint["state"], like=first), "the State's parts have the types that its class declares"
        state = unpack(checkpoint["state"], like=first)
        fed.load_state_dict(checkpoint["fed"])
        state = run(few_rounds(name), fed, last - round, first=round, state=state)
        assert type(state) is type(whole)
        assert all(torch.equal(a, b) for a, b in zip(tensors(state), values[last], strict=True)), f"from {round}"
        assert fed.collect() == collected[last]
        packed = tensors(checkpoint["state"])
        assert all(torch.equal(a, b) for a, b in zip(packed, values[round], strict=True))
    other = run(few_rounds(name), federation(**LATE, seed=1, home=default_home(name)), 1)
    assert not torch.equal(models[1], vectors(few_rounds(name).models(other)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_stays_finite_when_all_are_late_and_when_nobody_ever_reports(name: str) -> None:
    """Of clients that train for a number of steps."""
    how: dict[str, Any] = {"build": normed, "training": local(epochs=None, steps=3), "home": default_home(name)}
    for std in (6.0, 1e6):
        built, fed = few_rounds(name), federation(RAGGED, cohort=2, std=std, **how)
        state = run(built, fed, 8)
        assert all(torch.isfinite(t).all() for t in tensors(state) if t.is_floating_point())
    untouched = built.models(built.init(fed))
    assert fed.collect().get("late/in_flight", len(RAGGED)) == len(RAGGED), "nobody has reported"
    waits = not built.decentralized and name not in TRAINS_ON_THE_SERVER
    assert torch.equal(vectors(built.models(state)), vectors(untouched)) == waits


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_single_client_is_enough(name: str) -> None:
    built, fed = few_rounds(name), federation([5])
    state = run(built, fed, 3)
    assert torch.isfinite(vectors(built.models(state))).all() and fed.collect().get("late/arrived", 1) == 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_clients_that_are_held_out_never_train_and_change_nothing(name: str, monkeypatch: Any) -> None:
    """Not in local training, not where models meet, and not for who the aggregator is; their examples are unread."""
    planned: set[int] = set()
    plan = ClientData.plan

    def spy(self: ClientData, ids: np.ndarray, *rest: Any, **named: Any) -> Any:
        planned.update(ids.tolist() if self is fed.client_data else ())  # and not a server that is its own client
        return plan(self, ids, *rest, **named)

    monkeypatch.setattr(ClientData, "plan", spy)
    fed = federation([6, 3, 9, 5, 12, 8, 5, 7, 4, 10], participation=UniformParticipation(3, None, 4), std=1.0)
    built, out = few_rounds(name), fed.held_out
    assert len(out) == 4 and fed.population == 6 and not np.intersect1d(out, fed.participants).size
    if name == "hyfem":
        with pytest.raises(UserError, match=r"^participation\.held_out_clients must be 0 for algorithm=hyfem"):
            built.check(fed)
        return
    built.check(fed)
    state = run(built, fed, 5)
    assert planned == (set() if name == "center" else set(fed.participants.tolist())), "all others have trained"
    for client in out.tolist():
        fed.client_data.inputs[torch.from_numpy(fed.client_data.members(client))] += 3  # other examples
    again = federation([6, 3, 9, 5, 12, 8, 5, 7, 4, 10], participation=UniformParticipation(3, None, 4), std=1.0)
    again.client_data.inputs.copy_(fed.client_data.inputs)
    assert torch.equal(vectors(built.models(state)), vectors(built.models(run(built, again, 5))))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_clients_models_are_those_of_the_clients_that_are_asked_for(name: str) -> None:
    fed, built = federation(**LATE, home=default_home(name)), few_rounds(name)
    state = run(built, fed, 4)
    models = built.models(state)
    if not isinstance(models, torch.Tensor):
        return
    found = built.client_models(state, fed, np.arange(10))
    assert models.dim() == 1 and found.shape == (10, fed.family.size)
    some = np.array([7, 0, 3])
    assert torch.equal(built.client_models(state, fed, some), found[torch.from_numpy(some)])
