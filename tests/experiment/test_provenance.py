"""What a run notes of how it came to be: its command, typed again, is the same run.

`tests/sweep/test_callback.py` carries one out.
"""

import json
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fedlab_runner import train
from fedlab_runner.config import build
from fedlab_runner.experiment import provenance
from fedlab_runner.experiment.run import run_in
from fedlab_runner.tracking import recorder
from tests.helpers.composed import composed
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


def test_two_folders_of_one_run_are_two_runs_in_wandb_and_a_moved_folder_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of two sweeps, whose folders have the names of the runs. On the terminal all have the run's id."""
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []
    opened = recorder.open_tracker

    def open_tracker(*logger: Any, run_id: str, **others: Any) -> Any:
        seen.append(run_id)
        return opened(*logger, run_id=run_id, **others)

    monkeypatch.setattr(recorder, "open_tracker", open_tracker)
    cfg, more = composed("rounds=1"), composed("rounds=2")
    name = build.run_id(cfg)
    for place in ("outputs", "A", "B"):
        run_in(tmp_path / place / name, cfg)
    usual, *others = seen
    assert usual == name and len({*seen}) == 3 and all(each.startswith(f"{name}-") for each in others)
    for place in ("outputs", "A", "B"):
        (tmp_path / place).rename(tmp_path / f"moved{place}")
        with caplog.at_level("INFO"):
            run_in(tmp_path / f"moved{place}" / name, more)
    assert seen[3:] == seen[:3]
    assert [each for each in caplog.messages if "continues after" in each] == [
        f"{name} continues after round 1 of 2"
    ] * 3


def test_working_folders_that_share_a_folder_of_wandb_have_runs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both with the default folder of the run, `outputs/<name>`."""
    seen: list[str] = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        cfg = composed("rounds=1", "logger=wandb", "logger.mode=disabled", "logger.dir=../shared")
        folder = tmp_path / place / "outputs" / build.run_id(cfg)
        run_in(folder, cfg)
        (start,) = (json.loads(line) for line in (folder / provenance.COMMANDS_FILE).read_text().splitlines())
        seen.append(start["tracked_as"])
    assert len({*seen}) == 2 and all(each.startswith(f"{folder.name}-") for each in seen)


def test_a_copied_folder_is_a_run_of_its_own_in_wandb(tmp_path: Path) -> None:
    """Also once the folder that it was copied from is moved or removed."""

    def started(place: str) -> str:
        (folder := tmp_path / place).mkdir(exist_ok=True)
        provenance.record(
            folder, None, found := provenance.tracked_as(folder, "run", False), 1, {}, torch.device("cpu")
        )
        return found

    first = started("a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copied = started("b")
    assert (started("a"), started("b")) == (first, copied) and copied != first
    (tmp_path / "a").rename(tmp_path / "moved")
    assert (started("b"), started("moved")) == (copied, first)
    shutil.copytree(tmp_path / "moved", tmp_path / "c")
    shutil.rmtree(tmp_path / "b")
    assert len({started("c"), started("moved"), copied}) == 3


def test_a_noted_id_that_is_not_of_the_run_is_passed_over(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    starts: list[Any] = [
        3,
        *({"tracked_as": each, "folder": gone} for each in ("run-0a1b", 3, "../x", "run-/../", "run-0a1b\n")),
    ]
    (tmp_path / provenance.COMMANDS_FILE).write_text("".join(json.dumps(each) + "\n" for each in starts))
    assert provenance.tracked_as(tmp_path, "run", shared=False) == "run-0a1b"


def test_a_run_gets_an_id_of_its_own_when_its_place_becomes_one_that_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder := Path("outputs", "run")).mkdir(parents=True)
    seen = []
    for shared in (False, True, True, False):
        seen.append(provenance.tracked_as(folder, "run", shared))
        provenance.record(folder, None, seen[-1], 1, {}, torch.device("cpu"))
    assert seen[0] == "run" and seen[1].startswith("run-") and seen[1:] == seen[1:2] * 3
