"""Run folders as a run leaves them, with numbers of a test's choice."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedlab_runner.config.build import run_id
from fedlab_runner.experiment import failure
from fedlab_runner.utils import checksummed_json
from tests.helpers.composed import composed


def write_run(outputs: Path, *overrides: str, rows: Sequence[Mapping[str, Any]], small: bool = True) -> Path:
    """The folder of a run with these overrides; row i of `metrics.jsonl` is round i."""
    whole = composed(*overrides, small=small, with_hydra=True)
    cfg = OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])
    folder = outputs / run_id(cfg)
    OmegaConf.resolve(cfg)
    (folder / ".hydra").mkdir(parents=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg))
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"round": round} | dict(row)) + "\n" for round, row in enumerate(rows))
    )
    told = {"runtime": {"choices": dict(whole.hydra.runtime.choices)}, "overrides": {"task": list(overrides)}}
    hydra = {"hydra": told}
    (folder / ".hydra" / "hydra.yaml").write_text(OmegaConf.to_yaml(hydra))
    return folder


def curve(*accuracies: float, **costs: float) -> list[dict[str, float]]:
    """Rows with an accuracy each, and the same costs in each round but the first."""
    return [{"test/accuracy": accuracy} | (costs if round else {}) for round, accuracy in enumerate(accuracies)]


def write_note(folder: Path, error: str) -> None:
    """The note of the error that ended a run, in its folder."""
    (folder / failure.NOTE_FILE).write_text(checksummed_json.text({"error": error}))


def write_failed_job(outputs: Path, folder: Path, error: str) -> Path:
    """A sweep's record that a job failed."""
    sweep = outputs / "sweeps" / "a-sweep"
    (sweep / "jobs").mkdir(parents=True, exist_ok=True)
    job = {"folder": f"outputs/{folder.relative_to(outputs)}", "status": "failed", "error": error}
    (sweep / "jobs" / f"{folder.name}.json").write_text(checksummed_json.text(job))
    return sweep
