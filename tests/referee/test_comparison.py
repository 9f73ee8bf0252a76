"""The comparison with other libraries, without one: it agrees, it parts where it should, and the record is whole."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.peers.environments import PINNED
from tests.referee import run
from tests.referee.comparison import (
    FLOAT64,
    ROUNDS,
    Row,
    Setting,
    arrays,
    from_arrays,
    loaded,
    measure,
    ours,
    vector,
    with_homes,
    with_own_models,
)
from tests.referee.oracle import MODULES, module, not_here, rows
from tests.reference.ditto import ditto
from tests.reference.fedavg import fedavg
from tests.reference.homes import personal_layers, with_home


def loop(**keys: Any) -> Callable[[Setting], Iterator[Tensor]]:
    """The reference loop in the place of an oracle."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        return (state["params"] for state in fedavg(setting.draws, late_policy="delta", weighting="size", **keys))

    return theirs


ROW = Row("fedavg", loop(server_lr=1.0), "plain", network="batch_norm")


def test_the_reference_loop_agrees() -> None:
    found = measure(ROW)
    assert found["rounds"] == ROUNDS and found["difference"] < FLOAT64 and not run.parts(found)


def test_another_step_parts_in_the_first_round_and_step() -> None:
    found = measure(replace(ROW, theirs=loop(server_lr=1.0 + 1e-6), cause="its step is longer"))
    assert (found["round"], found["step"], found["cause"]) == (1, 1, "its step is longer")
    assert found["difference"] > FLOAT64


def test_the_first_round_and_the_first_step_are_found() -> None:
    def later(setting: Setting) -> Iterator[Tensor]:
        for round, x in enumerate(loop(server_lr=1.0)(setting)):
            yield x + 1e-6 * (round == 2)

    def second_step(setting: Setting) -> Iterator[Tensor]:
        """A local step is wrong where there is a second one."""
        for x in loop(server_lr=1.0)(setting):
            yield x + 1e-6 * (len(setting.draws.batches(setting.cohorts[0][0], 0)) > 1)

    found = measure(replace(ROW, theirs=later))
    assert (found["round"], found["step"]) == (3, None)
    found = measure(replace(ROW, theirs=second_step))
    assert (found["round"], found["step"]) == (1, 2)


def test_a_model_that_is_not_a_number_parts() -> None:
    def lost(setting: Setting) -> Iterator[Tensor]:
        return (x * float("nan") for x in loop(server_lr=1.0)(setting))

    assert measure(replace(ROW, theirs=lost))["round"] == 1


@pytest.mark.parametrize("method", ["fedavg", "fedasync"])
def test_the_clients_models_are_those_that_make_the_servers(method: str) -> None:
    """FedAvg's mean, and FedAsync's replacement by the last fresh model."""
    keys = {"fedavg": {}, "fedasync": {"alpha": 1.0, "staleness": "constant"}}[method]
    models, setting = ours(replace(ROW, method=method, keys=keys), 2)
    for x, arrived in zip(models, setting.arrived, strict=True):
        n = x.new_tensor(arrived.num_examples)
        mean = (n / n.sum()) @ arrived.models if method == "fedavg" else arrived.models[-1]
        assert (x - mean).abs().max() < FLOAT64


def of_round(loop: Any, shared: Any, kept: str) -> Callable[[Setting], Iterator[Tensor]]:
    """What is compared of a reference loop: shared values, then what the round's clients keep."""

    def theirs(setting: Setting) -> Iterator[Tensor]:
        states = loop(setting.draws, late_policy="delta", weighting="size", server_lr=1.0)
        for cohort, state in zip(setting.cohorts, states, strict=True):
            yield torch.cat([shared(setting, state["params"]), *(state[kept][client] for client in cohort)])

    return theirs


def test_the_clients_own_models_are_compared_too() -> None:
    """Another lam leaves the server's model the same."""
    found = [
        measure(
            Row(
                "ditto",
                of_round(partial(ditto, lam=lam), lambda _, x: x, "personal"),
                keys={"lam": 0.6},
                compared=with_own_models,
            )
        )
        for lam in (0.6, 0.6 + 1e-6)
    ]
    assert found[0]["rounds"] == ROUNDS and not run.parts(found[0])
    assert found[1]["round"] == 1 and run.parts(found[1])


def test_updates_of_an_attack_take_the_place_of_some_and_aggregators_act() -> None:
    """The median of eight, of which two lie, is that of the models that arrive; with another rule the two part."""

    def median(setting: Setting) -> Iterator[Tensor]:
        return (here.models.quantile(0.5, 0) for here in setting.arrived)

    row = Row("fedavg", median, cohort=8, aggregator={"name": "median"}, attack=lambda honest: honest[0] + 9, liars=2)
    assert measure(row)["rounds"] == ROUNDS
    _, setting = ours(row, 1)
    changes = setting.arrived[0].models - setting.draws.x0.vector
    assert torch.allclose(changes[6:], changes[0] + 9, rtol=0, atol=FLOAT64)
    assert measure(replace(row, aggregator={"name": "krum", "byzantine": 0.25}))["round"] == 1


def test_what_stays_at_home_is_compared_too() -> None:
    loop = of_round(partial(with_home, keep=personal_layers), lambda setting, x: x[~setting.at_home], "home")

    def kept_differs(setting: Setting) -> Iterator[Tensor]:
        for x in loop(setting):
            yield torch.cat([x[:-1], x[-1:] + 1e-6])

    row = Row("fedavg", loop, home="head", compared=with_homes)
    assert measure(row)["rounds"] == ROUNDS
    assert measure(replace(row, theirs=kept_differs))["round"] == 1


def test_a_vector_goes_into_a_module_and_back() -> None:
    _, setting = ours(ROW, 1)
    x, module = setting.draws.x0.vector + 1.0, setting.module()
    assert vector(loaded(module, x)).equal(x)
    assert from_arrays(arrays(module, x)).equal(x)


def test_rows_wait_for_their_method_their_server_optimizer_and_their_aggregator() -> None:
    assert ROW.here
    assert not replace(ROW, method="not_yet").here
    assert not replace(ROW, server_optimizer={"name": "not_yet"}).here
    assert not replace(ROW, aggregator={"name": "not_yet"}).here
    assert "CAF" in not_here("byzfl") and "MOON" in not_here("fluke")
    assert not set(not_here("flower")) & {row.setting for row in rows("flower")}


# What `make referee` recorded.


@pytest.mark.parametrize("oracle", MODULES)
def test_the_record_has_every_row_with_its_cause(oracle: str) -> None:
    measured = run.recorded()["oracles"][oracle]
    assert measured["version"] == PINNED[oracle], "run: make referee"
    found = measured["rows"]
    assert [each["setting"] for each in found] == [row.setting for row in rows(oracle)], "run: make referee"
    assert [each.get("cause", "") for each in found] == [row.cause for row in rows(oracle)], "run: make referee"
    assert run.surprises(oracle, found) == []


def test_a_surprise_is_told() -> None:
    found = [dict(each) for each in run.recorded()["oracles"]["torchmetrics"]["rows"]]
    found[0]["cause"], found[1] = "", {"setting": found[1]["setting"], "error": "ValueError: no"}
    assert run.surprises("torchmetrics", found) == [
        "torchmetrics: test/accuracy (MulticlassAccuracy, average micro): parts, and the row gives no cause",
        "torchmetrics:  (MulticlassAccuracy, average none): ValueError: no",
    ]


def test_every_reproduction_is_recorded_and_short() -> None:
    scripts = {path.stem: path for path in run.FINDINGS.glob("*.py")}
    found = {name: lines for each in run.recorded()["oracles"].values() for name, lines in each["findings"].items()}
    assert found.keys() == scripts.keys() and all(found.values()), "run: make referee"
    assert all(len(path.read_text().splitlines()) <= 60 for path in scripts.values())
    assert all("fedlab_runner" not in path.read_text() for path in scripts.values())


# With the libraries, where `make referee` has made their environments.


@pytest.mark.slow
@pytest.mark.parametrize("oracle", MODULES)
def test_an_oracle_says_what_is_recorded(oracle: str) -> None:
    python = run.environments() / oracle / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{PINNED[oracle]} is not installed in {python.parents[1]}: make referee")
    found = run.measured(oracle, Path(python))
    assert run.surprises(oracle, found) == []
    before = run.recorded()["oracles"][oracle]["rows"]
    assert [(each.get("round"), each.get("step")) for each in found] == [
        (each.get("round"), each.get("step")) for each in before
    ]
    for script in run.findings(oracle):
        assert run.printed(script, Path(python)) == run.recorded()["oracles"][oracle]["findings"][script.stem]


def test_the_module_of_each_oracle_needs_no_oracle() -> None:
    assert all(module(oracle).ROWS for oracle in MODULES)
