"""`kill -9` and SIGTERM to a command as a user types it, then the same command: the bytes of a run left alone.

`test_crash` kills runs of all families at every point, without the start of a process; here the whole command is tried.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedlab_runner import train
from tests.helpers.composed import files
from tests.helpers.crash import TINY
from tests.helpers.in_process import own_handlers

ROUNDS = 40
NAMES = (
    "fedbuff",
    "fedcda algorithm.warmup=5 algorithm.store_on=disk",
    "fedgen algorithm.steps=5",
    "scaffold algorithm.store_on=disk",
    "dfml server_data=none",
)


def arguments(folder: Path) -> list[str]:
    return [*TINY, f"rounds={ROUNDS}", f"hydra.run.dir={folder}"]


def start(folder: Path, *overrides: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fedlab_runner.train", *arguments(folder), *overrides]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder.parent)


def whole(folder: Path, *overrides: str) -> None:
    """Runs to the end, in this process."""
    with own_handlers(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedlab", *arguments(folder), *overrides])
        assert train.main() == 0


def rounds_done(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def stopped(folder: Path, number: signal.Signals, rounds: int, *overrides: str) -> tuple[int, bytes]:
    """The exit code and the errors of a run that is sent a signal after so many more rounds."""
    process, target = start(folder, *overrides), rounds_done(folder) + rounds
    while process.poll() is None and rounds_done(folder) < target:
        time.sleep(0.002)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_stopped_runs_end_in_the_same_bytes(name: str, tmp_path: Path) -> None:
    overrides = f"algorithm={name} delay={'none' if 'dfml' in name else 'half_normal'}".split()
    whole(tmp_path / "whole", *overrides)
    rng, folder = random.Random(name), tmp_path / "stopped"
    assert stopped(folder, signal.SIGKILL, rng.randint(1, 14), *overrides) == (-signal.SIGKILL, b"")
    assert 0 < rounds_done(folder) < ROUNDS
    code, errors = stopped(folder, signal.SIGTERM, rng.randint(1, 14), *overrides)
    assert code == 128 + signal.SIGTERM, errors.decode()
    assert errors == b"stopped by signal 15; the same command continues from the last checkpoint\n"
    newest = max(int(path.stem.removeprefix("round_")) for path in (folder / "checkpoints").glob("*.pt"))
    assert newest in (rounds_done(folder) - 1, rounds_done(folder) - 2), "the last whole round is there"
    whole(folder, *overrides)
    assert files(folder) == files(tmp_path / "whole")
