"""What a continued run must have in common with its beginning."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedlab_runner.experiment.loading import load
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.resuming import STRANGE, understood
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.toy import federation, mlp

SMALL = ("dataset=synthetic", "dataset.num_train=60", "dataset.num_test=10", "num_clients=4", "executor=loop")


@pytest.mark.parametrize(
    ("choices", "key", "first", "other"),
    [
        (("algorithm=fedbuff", "delay=from_file"), "delay.path", "0\n1\n2\n0\n", "0\n1\n2\n1\n"),
        (("algorithm=dec_fedavg", "topology=edge_list"), "topology.path", "0 1\n1 2\n2 3\n", "0 1\n1 2\n1 3\n"),
    ],
)
def test_a_run_does_not_go_on_with_other_delays_or_another_graph(
    choices: tuple[str, ...], key: str, first: str, other: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "given.txt"

    def run(rounds: int, text: str, *overrides: str) -> None:
        file.write_text(text)
        run_in(tmp_path / "run", composed(*SMALL, *choices, f"{key}={file}", f"rounds={rounds}", *overrides))

    run(1, first)
    run(2, f"# the same\n{first}")
    with pytest.raises(
        UserError, match=r"^the examples, .* delays, or their links, are not those that the run began"
    ) as error:
        run(3, other)
    assert key in str(error.value) and "\n" not in str(error.value)
    run(3, other, "checkpoint.same_data=false")
    assert "the run continues with these" in caplog.text


def test_an_attempt_without_a_checkpoint_binds_no_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint has nonfinite=stop, the config that of an attempt which was killed before its next checkpoint."""
    folder, command = tmp_path / "run", (*SMALL, "algorithm=fedavg", "checkpoint.rounds=1")

    def killed(self: Simulation, *args: object, **more: object) -> None:
        raise KeyboardInterrupt

    run_in(folder, composed(*command, "rounds=1"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Simulation, "_round", killed)
        run_in(folder, composed(*command, "rounds=2", "nonfinite=drop"))
    assert "nonfinite: drop" in (folder / "config.yaml").read_text()
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert load(folder).round == 1
    run_in(folder, composed(*command, "rounds=2"))
    run_in(folder, composed(*command, "rounds=3", "nonfinite=drop"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"round_000003\.pt is of another config: nonfinite \(drop there, stop here\)"):
        run_in(folder, composed(*command, "rounds=4"))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_frozen_weights_of_each_architecture_are_those_of_the_run() -> None:
    def frozen(value: float) -> nn.Module:
        module = mlp()
        module.register_parameter("frozen", nn.Parameter(torch.tensor([value]), requires_grad=False))
        return module

    unused: Any = None
    one, again, other = (
        Simulation(unused, federation(builds=(mlp, partial(frozen, value))), *[unused] * 4, 1, "").frozen
        for value in (1.0, 1.0, 2.0)
    )
    assert one == again != other


@pytest.mark.parametrize("more", ["", "; train.log has more"], ids=["python", "command"])
def test_a_strange_checkpoint_names_a_log_only_where_there_is_one(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [logging.FileHandler(tmp_path / "train.log")] if more else []
    monkeypatch.setattr(logging.root, "handlers", handlers)
    with pytest.raises(UserError, match=rf"\(KeyError: 'w'{more}\): delete it, or give "), understood(3, STRANGE):
        raise KeyError("w")
    for each in handlers:
        each.close()
