"""`kill -9` at any instant, then the same command: the same bytes as a run that was never touched."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.composed import files

SMALL = (
    "model=logistic",
    "num_clients=20",
    "participation.cohort_size=4",
    "local.epochs=1",
    "delay.std=3",
    "rounds=40",
    "evaluation.every=5",
    "checkpoint.rounds=3",
    "checkpoint.seconds=null",
    "device=cpu",
)


def start(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "fedlab_runner.train",
        *SMALL,
        f"hydra.run.dir={folder}",
        f"logger.dir={folder.parent}/wandb",
    ]
    return subprocess.Popen(
        [*command, *overrides], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder.parent
    )


def whole(folder: Path, *overrides: str) -> None:
    process = start(folder, *overrides)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def rounds_done(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


SLOW = (
    "fedcda algorithm.warmup=5 algorithm.store_on=disk",
    "fedavg",
    "fedexp",
    "fedgen",
    "fedasync",
    "fedprox",
    "scaffold",
    "scaffold algorithm.store_on=disk",
    "ca2fl algorithm.store_on=disk",
    "dfml server_data=none",
    "fedma model=mlp model.hidden=[8]",
    "gamf model=mlp model.hidden=[8]",
    "hyfem model=blocks_mlp partition=random_blocks partition.num_blocks=4 algorithm.keep_own=true "
    "partition.blocks_per_client=2 server_data=none",
    "standalone",
)


@pytest.mark.parametrize(
    "name",
    [
        "fedbuff",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
    ],
)
def test_killed_runs_end_in_the_same_bytes(name: str, tmp_path: Path) -> None:
    overrides = f"algorithm={name}".split()
    whole(tmp_path / "whole", *overrides)
    rng, folder, kills = random.Random(name), tmp_path / "killed", 0
    for _ in range(3):
        before = rounds_done(folder)
        process = start(folder, *overrides)
        target = before + rng.randint(1, 14)
        while process.poll() is None and rounds_done(folder) < target:
            time.sleep(0.003)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills >= 2, "the runs were too short to be killed"
    whole(folder, *overrides)
    assert files(folder) == files(tmp_path / "whole")


def test_sigterm_checkpoints_and_ends_with_143(tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    process = start(folder, "rounds=100000")
    while process.poll() is None and rounds_done(folder) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors.decode()
    assert errors == b"stopped by signal 15; the same command continues from the last checkpoint\n"
    newest = max(int(path.stem.removeprefix("round_")) for path in (folder / "checkpoints").glob("*.pt"))
    assert newest in (rounds_done(folder) - 1, rounds_done(folder) - 2), "the last whole round is there"
