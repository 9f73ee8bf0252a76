"""One config and seed, one result: twice, in a fresh process, by other chunks, workers and executors.

Equal bytes where the executor computes the same sums in the same order, equal to rounding where it does not.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedlab_runner.experiment.run import run_in
from tests.helpers import pictures
from tests.helpers.composed import SMALL, composed, files

OVERRIDES = ("algorithm=fedbuff", "rounds=6", "delay.std=2", "evaluation.every=1", "participation.cohort_size=7")
LOOP = "executor=loop"
# Of float32 metrics over these rounds; rounding grows with the number of steps.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the reference executor."""
    folder = tmp_path_factory.mktemp("loop")
    with pytest.MonkeyPatch.context() as patch:
        pictures.leave_out(patch.setattr)
        run_in(folder, composed(*OVERRIDES, LOOP))
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_close(one: Path, other: Path) -> None:
    for mine, theirs in zip(rows(one), rows(other), strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert math.isclose(mine[key], theirs[key], rel_tol=TOLERANCE, abs_tol=TOLERANCE), key


def test_twice(loop: Path, tmp_path: Path) -> None:
    run_in(tmp_path, composed(*OVERRIDES, LOOP))
    assert files(tmp_path) == files(loop)


def test_in_a_fresh_process_with_another_hash_seed(loop: Path, tmp_path: Path) -> None:
    """And another place, time and environment."""
    environment = os.environ | {"PYTHONHASHSEED": "123", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    command = [sys.executable, "-m", "fedlab_runner.train", *SMALL, *OVERRIDES, LOOP, f"hydra.run.dir={tmp_path}/run"]
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=tmp_path, timeout=300)
    assert files(tmp_path / "run") == files(loop)


@pytest.mark.parametrize("workers", [1, 3])
def test_with_any_number_of_workers(workers: int, loop: Path, tmp_path: Path) -> None:
    run_in(tmp_path, composed(*OVERRIDES, "executor=processes", f"executor.workers={workers}"))
    assert files(tmp_path) == files(loop)


@pytest.mark.parametrize("chunk_size", [1, 2, 5, "null"])
def test_with_any_chunk_size(chunk_size: int | str, loop: Path, tmp_path: Path) -> None:
    """The cohort does not divide evenly, and what is late stays so."""
    run_in(tmp_path, composed(*OVERRIDES, "executor=vectorized", f"executor.chunk_size={chunk_size}"))
    assert_close(tmp_path, loop)
    for key in ("late/arrived", "late/in_flight", "comm/upload_mb", "late/staleness_max"):
        assert [row.get(key) for row in rows(tmp_path)] == [row.get(key) for row in rows(loop)], "not a function of it"


def test_one_chunk_size_gives_one_result(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run_in(tmp_path / name, composed(*OVERRIDES, "executor=vectorized", "executor.chunk_size=3"))
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_what_a_process_did_before_makes_no_difference(loop: Path, tmp_path: Path) -> None:
    """Global random states, and another run in between."""
    import random

    import numpy as np
    import torch

    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        run_in(tmp_path / "another", composed("algorithm=scaffold", "rounds=2", "seed=3", LOOP))
        run_in(tmp_path / "again", composed(*OVERRIDES, LOOP))
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
    assert files(tmp_path / "again") == files(loop)


def test_another_seed_is_another_run(loop: Path, tmp_path: Path) -> None:
    run_in(tmp_path, composed(*OVERRIDES, LOOP, "seed=1"))
    assert files(tmp_path)["metrics.jsonl"] != files(loop)["metrics.jsonl"]
