"""What a run notes of how it came to be: its command, typed again, is the same run.

`tests/sweep/test_callback.py` carries one out.
"""

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fedlab_runner import train
from fedlab_runner.config import build
from fedlab_runner.experiment import provenance
from tests.helpers.in_process import own_handlers


class Seen(NamedTuple):
    """A job as Hydra composed it."""

    folder: Path
    fingerprint: dict[str, Any]
    command: str
    hydra: Any


Type = Callable[[str], list[Seen]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Type]:
    """Types a command in a folder with two config folders of a user's; the jobs that it composes, which do nothing."""

    slow = (build.conf_dir() / "local" / "sgd.yaml").read_text().replace("\nlr: ", "\nlr: 0.125 # was ")
    for place in ("mine", "my configs, ümläut"):
        (tmp_path / place / "local").mkdir(parents=True)
        (tmp_path / place / "local" / "slow.yaml").write_text(slow)
    (tmp_path / "mine" / "half.yaml").write_text("defaults:\n  - train\n  - _self_\n\nlocal:\n  lr: 0.0125\n")
    (tmp_path / "mine" / "experiment").mkdir()
    (tmp_path / "mine" / "experiment" / "own.yaml").write_text("# @package _global_\nseed: 7\n")
    monkeypatch.chdir(tmp_path)
    seen: list[Seen] = []

    def stand_in(cfg: DictConfig) -> float:
        hydra = HydraConfig.get()
        command = provenance.command_of(hydra, build.run_id(cfg))
        seen.append(Seen(Path(hydra.runtime.output_dir), build.fingerprint(cfg), command, hydra))
        return 0.5

    def run(command: str) -> list[Seen]:
        seen.clear()
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        assert train.main() == 0
        return list(seen)

    monkeypatch.setattr("fedlab_runner.experiment.run.run", stand_in)
    with own_handlers():
        yield run


@pytest.mark.parametrize(
    "command",
    [
        "fedlab --config-dir 'my configs, ümläut' local=slow",
        "fedlab --config-dir mine --config-name half",
        "fedlab 'logger.tags=[a b,\"c,d\"]' seed=3 hydra.job.name=x",
        "fedlab server_optimizer=sgd 'server_optimizer.lr=${local.lr}' 'local.weight_decay=${.momentum}'",
        "fedlab -m --config-dir mine local=slow,sgd experiment=own rounds=5",
        "fedlab -m seed=0,1 \"hydra.sweep.dir='sweeps, mine'\" 'hydra.sweep.subdir=${hydra.job.num}'",
        "fedlab seed=0,1 hydra.mode=MULTIRUN hydra.sweep.dir=elsewhere",
    ],
)
def test_the_command_of_each_job_is_the_same_run(command: str, typed: Type) -> None:
    jobs = typed(command)
    assert len(jobs) >= 1 + (("-m" in command) or "MULTIRUN" in command)
    for job in jobs:
        (again,) = typed(job.command)
        assert again.folder == job.folder and again.fingerprint == job.fingerprint
        assert again.command == job.command


def test_a_plain_command_is_noted_as_it_was_typed(typed: Type) -> None:
    command = "fedlab algorithm=fedavg 'logger.tags=[a b]' local.lr=0.3 'local.weight_decay=${local.momentum}'"
    assert [job.command for job in typed(command)] == [command]


def test_a_pipe_in_the_place_of_the_commands_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / provenance.COMMANDS_FILE)
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.append(provenance.codes(tmp_path)), daemon=True)
    reading.start()
    reading.join(5)
    if reading.is_alive():
        os.close(os.open(path, os.O_WRONLY))
    assert found == [[]]
