"""The folders in which W&B keeps a run on disk: one for each start, `<kind>-<date>_<time>-<id>`."""

import glob
from pathlib import Path
from typing import Literal

from fedlab_runner.tracking import wandb_file


def wandb_folder(folder: Path) -> Path:
    """The folder of all runs: W&B wants `wandb` as its last part."""
    folder = folder.expanduser().absolute()
    return folder if folder.name == "wandb" else folder / "wandb"


def copies(folder: Path, run_id: str, kind: Literal["run", "offline-run"]) -> list[Path]:
    """The folders of exactly this id that hold a run, begun online (`run`) or offline."""
    # Unlike the folder's name, the file's name has no number after the id.
    found = folder.glob(f"{kind}-*{glob.escape(run_id)}*")
    return [path for path in found if file_of(path, run_id).is_file()]


def file_of(copy: Path, run_id: str) -> Path:
    """The file that holds the run."""
    return copy / f"run-{run_id}.wandb"


def is_uploaded(copy: Path, run_id: str) -> bool:
    """Whether `wandb sync` has uploaded the copy."""
    return (copy / f"run-{run_id}.wandb.synced").exists()


def first_missing_round(kept: list[Path], run_id: str) -> int:
    """The round after the last one that these copies hold, 0 if they hold none."""
    return max((wandb_file.next_step(file_of(copy, run_id)) for copy in kept), default=0)
