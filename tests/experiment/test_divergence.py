"""What the line on a diverged run names."""

from pathlib import Path
from typing import Any

import pytest

from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.algorithms.shared.averaging import Params
from fedlab_runner.core.federation import Federation
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.errors import Diverged
from tests.helpers.composed import composed


def test_a_step_that_takes_the_mean_of_no_updates_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: FedAvg, state: Params, arrivals: Any, fed: Federation) -> Params:
        return Params(state.params + arrivals.upload[0].mean(0).sum())

    monkeypatch.setattr(FedAvg, "server_step", step)
    line = r"the loss is finite, but not the model that FedAvg\.round made of 0 updates: lower local\.lr or set "
    with pytest.raises(Diverged, match=line):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "delay=constant", "rounds=2"))


def test_where_no_client_trains_neither_their_loss_nor_their_rate_is_named(tmp_path: Path) -> None:
    line = r"diverged in round 1: the model that Center\.round made is not finite: lower the algorithm's rates, or mend"
    with pytest.raises(Diverged, match=line):
        run_in(tmp_path, composed("algorithm=center", "algorithm.lr=1e30", "model=mlp", "rounds=2"))


def test_where_no_client_has_trained_to_a_finite_model_their_rate_is_named(tmp_path: Path) -> None:
    """HFCL's server trains with it, and has no other."""
    line = r"the model that HFCL\.round made of 0 updates is not finite: lower local\.lr or set local\.clip_norm, "
    overrides = ("algorithm=hfcl", "local.lr=1e38", "local.steps=9", "local.epochs=null", "model=mlp", "delay=none")
    with pytest.raises(Diverged, match=line):
        run_in(tmp_path, composed(*overrides, "rounds=2", "nonfinite=drop"))


def test_where_the_servers_training_has_left_a_huge_model_clients_are_not_blamed_alone(tmp_path: Path) -> None:
    """The client's own training loss is not a number, one round later."""
    line = r"training loss nan, from a model that had diverged before, with the loss \S+\): .*the algorithm's rates"
    with pytest.raises(Diverged, match=line):
        run_in(tmp_path, composed("algorithm=fedft", "algorithm.lr=1e3", "model=mlp", "delay=none", "rounds=4"))


def test_warnings_say_so_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    overrides = ("algorithm=fedft", "algorithm.lr=1e3", "model=mlp", "delay=none", "rounds=3", "nonfinite=drop")
    run_in(tmp_path, composed(*overrides))
    assert ", from a model that had diverged before, with the loss " in caplog.text


def test_where_the_server_diverges_its_own_rates_are_named(tmp_path: Path) -> None:
    line = r"not the model that Feddle\.round made of \d+ updates: .*clip_norm, lower the algorithm's rates, or mend"
    with pytest.raises(Diverged, match=line):
        run_in(tmp_path, composed("algorithm=feddle", "algorithm.lr=1e30", "model=mlp", "delay=none", "rounds=2"))
