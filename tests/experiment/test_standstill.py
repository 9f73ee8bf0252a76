"""Runs in which the server never steps say so: before the first round where that can be known, and at the end."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.delays.constant import ConstantDelay
from fedlab_runner.experiment.run import run_in
from fedlab_runner.experiment.standstill import MAX_ROUNDS_AHEAD, foreseen
from fedlab_runner.tracking.summary import standstill
from tests.helpers.composed import composed
from tests.helpers.toy import ALGORITHMS, algorithm, federation, local

FEW = ("server_data=none", "evaluation.every=1", "rounds=3", "num_clients=12", "participation.cohort_size=3")
LATE = "delay=constant"
STILL = {
    "a buffer that never fills": ("algorithm=fedbuff", "delay=none", "algorithm.buffer_size=10"),
    "the same of CA2FL": ("algorithm=ca2fl", "delay=none", "algorithm.buffer_size=10"),
    "a delay beyond the end": ("algorithm=fedavg", LATE, "delay.rounds=3"),
    "the same of SCAFFOLD": ("algorithm=scaffold", LATE, "delay.rounds=7"),
    "all is discarded": ("algorithm=fedavg", LATE, "delay.rounds=1", "algorithm.late_policy=discard"),
    "the same of FedProx": ("algorithm=fedprox", LATE, "delay.rounds=1", "algorithm.late_policy=discard"),
}
MOVING = {
    "the buffer fills in the last round": ("algorithm=fedbuff", "delay=none", "algorithm.buffer_size=9"),
    "arrivals of the last round": ("algorithm=fedavg", LATE, "delay.rounds=2"),
    "late ones count": ("algorithm=fedavg", LATE, "delay.rounds=1"),
    "nobody is late": ("algorithm=fedavg", "delay=none", "algorithm.late_policy=discard"),
}


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("case", STILL)
def test_a_run_that_stands_still_says_so(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fedlab_runner")
    number = run_in(tmp_path, composed(*FEW, *STILL[case]))
    before, after = (record.message for record in caplog.records if "model" in record.message)
    assert before.startswith("the server's model will not change: ") and "\n" not in before
    assert after.startswith("the evaluated model never changed: ") and summary(tmp_path)["warnings"] == [after]
    bytes = (tmp_path / "summary.json").read_bytes()
    assert run_in(tmp_path, composed(*FEW, *STILL[case])) == number
    assert (tmp_path / "summary.json").read_bytes() == bytes, "a finished run keeps what it said"


@pytest.mark.parametrize(("rounds", "within"), [(1, "1 round:"), (1000, "1,000 rounds:")])
def test_the_rounds_in_which_nothing_arrives_are_counted_in_words(rounds: int, within: str) -> None:
    fed = federation(delay=ConstantDelay("client", 1000))
    assert f"within {within}" in str(foreseen(algorithm("fedavg"), fed, rounds))


@pytest.mark.parametrize("case", MOVING)
def test_a_run_that_moves_does_not(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fedlab_runner")
    run_in(tmp_path, composed(*FEW, *MOVING[case]))
    assert "warnings" not in summary(tmp_path) and not caplog.records


def test_a_run_that_stood_still_and_is_asked_for_more(tmp_path: Path) -> None:
    run_in(tmp_path, composed(*FEW, *STILL["a buffer that never fills"]))
    run_in(tmp_path, composed(*FEW, *STILL["a buffer that never fills"], "rounds=4"))
    assert "warnings" not in summary(tmp_path)


def moves(how: ServerAlgorithm[Any, Any], fed: Federation, rounds: int) -> bool:
    state = how.init(fed)
    first = how.server_model(state).clone()
    for round in range(rounds):
        fed.begin(round, 1.0)
        state = how.round(state, fed)
    return not torch.equal(how.server_model(state), first)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_is_foretold_that_is_not_so(name: str) -> None:
    """For every algorithm with a server: where it is said, no round moves the model, also where no update arrives, or
    `late_policy` discards all that do. There it is said if so.
    """
    how = algorithm(name)
    if not isinstance(how, ServerAlgorithm):
        return
    discards = [replace(how, late_policy="discard")] if hasattr(how, "late_policy") else []
    cases = [(how, 0, False), (how, 2, False), (how, 9, True), *((each, 1, True) for each in discards)]
    for each, delay, sure in cases:
        fed = federation(cohort=2, training=local(epochs=1), delay=ConstantDelay("client", delay))
        told = foreseen(each, fed, rounds=3)
        if told is not None or sure:
            assert moves(each, fed, rounds=3) == (told is None), (delay, told)


def test_rows_of_which_nothing_can_be_said() -> None:
    still = [{"round": 0, "test/loss": 1.0}, {"round": 1}, {"round": 2, "test/loss": 1.0}]
    assert standstill(still) == "the evaluated model never changed: each evaluation is that of the first model"
    with_arrivals = standstill([row | {"late/arrived": 2} for row in still])
    assert with_arrivals and with_arrivals.endswith(", and 6 updates have arrived")
    assert standstill([]) is None and standstill(still[:2]) is None and standstill([{"round": 0}, {"round": 1}]) is None
    assert standstill([*still, {"round": 3, "test/loss": 1.5}]) is None
    assert foreseen(algorithm("fedbuff"), federation(), MAX_ROUNDS_AHEAD + 1) is None
