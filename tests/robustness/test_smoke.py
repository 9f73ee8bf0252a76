"""Random combinations of all choices: the generator offers each of them, and sees what goes wrong.

`pytest -m slow tests/robustness/test_smoke.py` tries FEDLAB_SMOKE of them (300), `make smoke` as many as one asks for.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import smoke
from tests.helpers.paths import ROOT
from tests.helpers.smoke import Ended, choices, combination

MANY = range(400)


def test_a_combination_is_a_function_of_its_number() -> None:
    assert [combination(number) for number in range(20)] == [combination(number) for number in range(20)]
    assert len({tuple(combination(number)) for number in MANY}) == len(MANY)


def test_every_choice_of_every_group_is_tried() -> None:
    seen = {argument for number in range(1500) for argument in combination(number)}
    groups = {path.name for path in smoke.CONF.iterdir() if path.is_dir()} - smoke.NO_CHOICE
    assert {"algorithm", "model", "partition", "executor", "delay", "analysis", "lr_schedule"} <= groups
    missing = {f"{group}={name}" for group in groups for name in choices(group)} - seen
    assert missing == {"partition=assigned_blocks"}, "which fixes nine clients and ten classes"
    ours = (
        "precision=bfloat16",
        "local.batch_size=1",
        "local.batch_size=64",
        "participation.cohort_size=1",
        "threads=2",
    )
    assert {*ours, "threads=1", "client_split.validation=0.2", "rounds=2", "rounds=3"} <= seen


@pytest.mark.parametrize(
    ("code", "said", "fault"),
    [
        (0, "6 rounds", None),
        (2, "error: local.lr must be > 0, got 0\nerror: seed must be >= 0", None),
        (1, "error: the run diverged in round 2 (train/loss nan): lower local.lr", None),
        (1, "error: something else", "exit code 1 with 1 errors"),
        (2, "", "exit code 2 with 0 errors"),
        (2, "error: " + "x" * 1000, "exit code 2 with 1 errors"),
        (0, "error: x", "exit code 0 with an error"),
        (0, "Traceback (most recent call last):\n", "a traceback"),
        (1, "RuntimeError: expected scalar type BFloat16 but found Float", "a traceback"),
        (-11, "", "exit code -11 with 0 errors"),
        (None, "", "did not end within 300 s"),
    ],
)
def test_what_is_a_fault(code: int | None, said: str, fault: str | None) -> None:
    assert Ended(0, code, said, 1.0).fault == fault


def test_runs_are_tried_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an own process: one ends well, one dies of a signal, one raises, one hangs; each is told by its number."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "from tests.helpers import smoke\n"
        "from fedlab_runner import train\n"
        "def main():\n"
        "    number = int(sys.argv[1].removeprefix('seed='))\n"
        "    if number == 1: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    if number == 2: raise RuntimeError('x')\n"
        "    if number == 3: time.sleep(1000)\n"
        "    return 0\n"
        "train.main, smoke.LIMIT = main, 2.0\n"
        "smoke.combination = lambda number: [f'seed={number}']\n"
        "for ended in smoke.tried(range(4)): print(ended.number, ended.fault, ended.command, sep=';')\n"
    )
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.splitlines() == [
        "0;None;fedlab seed=0",
        f"1;exit code {-signal.SIGSEGV} with 0 errors;fedlab seed=1",
        "2;a traceback;fedlab seed=2",
        "3;did not end within 2 s;fedlab seed=3",
    ]
    assert time.monotonic() - began < 500


@pytest.mark.slow
def test_random_combinations() -> None:
    """Others each day: a combination that once failed is found again by its number."""
    seed, count = int(time.time() // 86400), os.environ.get("FEDLAB_SMOKE", "300")
    command = [sys.executable, str(Path(smoke.__file__)), "--count", count, "--seed", str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
