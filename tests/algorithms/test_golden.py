"""Recorded curves: a change that is not meant to change results must leave them alone (`make golden` records again)."""

import json
import os
from typing import Any

import pytest
import torch

from tests.helpers.paths import ROOT
from tests.helpers.toy import ALGORITHMS, ANY_OPTIMIZER, algorithm, default_home, federation, local, vectors

GOLDEN = ROOT / "tests/golden"
ROUNDS = 8


def curve(name: str) -> list[dict[str, float]]:
    """Each round's metrics and the norm of what is evaluated, with late clients of different sizes."""
    training = local(momentum=0.0 if name in ANY_OPTIMIZER else 0.3)
    fed = federation([6, 3, 9, 1, 12, 8, 5, 7, 2, 10], cohort=4, std=2.0, training=training, home=default_home(name))
    built: Any = algorithm(name)
    state, rows = built.init(fed), []
    for round in range(ROUNDS):
        fed.begin(round, 1 / (1 + round))
        state = built.round(state, fed)
        models = vectors(built.models(state))
        norm, mean = float(torch.linalg.vector_norm(models)), float(models.mean())
        rows.append({"round": round + 1, "model/norm": norm, "model/mean": mean, **fed.collect()})
    return rows


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_curve_is_the_recorded_one(name: str) -> None:
    path, rows = GOLDEN / f"{name}.json", curve(name)
    if os.environ.get("FEDLAB_REWRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text("[\n" + ",\n".join(json.dumps(row, sort_keys=True) for row in rows) + "\n]\n")
    recorded = json.loads(path.read_text())
    assert len(recorded) == len(rows)
    for mine, theirs in zip(rows, recorded, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-12), f"round {theirs['round']}"


def test_every_recorded_curve_has_its_algorithm() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == ALGORITHMS
