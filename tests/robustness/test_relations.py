"""Relations between runs of random combinations: each is tried, and what breaks one is seen.

`pytest -m slow tests/robustness/test_relations.py` tries FEDLAB_RELATIONS combinations (30), others each day.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers import relations

NAMES = {"killed", "memory", "extended", "processes", "swept", "watched", "side by side", "compiled", "summed"}


def a_run(folder: Path, loss: float, weight: float) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps({"round": 1, "train/loss": loss, "note": "x"}) + "\n")
    save_file({"w": torch.tensor([1.0, weight])}, folder / "model.safetensors")
    return folder


def test_each_relation_is_tried_and_is_a_function_of_the_number() -> None:
    def words(number: int) -> list[tuple[str, list[str], list[list[str]]]]:
        return [(each.name, each.one, each.other) for each in relations.relations(number)]

    assert {name for number in range(60) for name, *_ in words(number)} == NAMES
    assert [words(number) for number in range(5)] == [words(number) for number in range(5)]
    for number in range(60):
        for _, one, other in words(number):
            keys = [[each.partition("=")[0] for each in command] for command in (one, *other)]
            assert all(len({*each}) == len(each) for each in keys), "Hydra takes a key once"


@pytest.mark.parametrize(
    ("loss", "weight", "of_bytes", "of_numbers"),
    [
        (0.5, 2.0, None, None),
        (0.5 + 1e-9, 2.0, "metrics.jsonl differs", None),
        (0.51, 2.0, "metrics.jsonl differs", "train/loss is 0.5 and 0.51"),
        (float("nan"), 2.0, "metrics.jsonl differs", "train/loss is 0.5 and nan"),
        (0.5, 2.000001, "the weights are 4.3e-07 apart", None),
        (0.5, 2.1, "the weights are 4.5e-02 apart", "the weights are 4.5e-02 apart"),
        (0.5, float("nan"), "the weights are nan apart", "the weights are nan apart"),
    ],
)
def test_what_is_a_difference(
    loss: float, weight: float, of_bytes: str | None, of_numbers: str | None, tmp_path: Path
) -> None:
    one, other = a_run(tmp_path / "one", 0.5, 2.0), a_run(tmp_path / "other", loss, weight)
    assert relations._bytes(one, other) == of_bytes
    assert relations._numbers(one, other) == of_numbers


@pytest.mark.slow
def test_random_combinations() -> None:
    seed, count = int(time.time() // 86400), os.environ.get("FEDLAB_RELATIONS", "30")
    command = [sys.executable, "-m", "tests.helpers.relations", "--count", count, "--seed", str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=relations.smoke.ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
