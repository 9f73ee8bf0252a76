"""Tells the jobs of any launcher their sweep, by environment variables, and notes the sweeps that a run belongs to."""

import os
from pathlib import Path

from fedlab_runner.utils import untrusted
from fedlab_runner.utils.files import update_text

NAME = "FEDLAB_SWEEP"  # the sweep's name
FOLDER = "FEDLAB_SWEEP_FOLDER"  # the sweep's folder
JOB = "FEDLAB_SWEEP_JOB"  # the place of the process's present job in the sweep, such as `job 7/18`
IN_SWEEP = {"in_sweep": True}  # the `extra` of a log record that the terminal shows in a sweep; others go to files only
SWEEPS = "sweeps.txt"  # in the run's folder: the sweeps that it belongs to, one a line


def sweep_folder() -> Path | None:
    """The folder of the sweep that this process works for."""
    folder = os.environ.get(FOLDER)
    return None if folder is None else Path(folder)


def sweeps_of(folder: Path) -> tuple[str, ...]:
    """The sweeps that the run in a folder belongs to, including the one that this process works for."""
    try:
        noted = untrusted.read_bytes(folder / SWEEPS).decode(errors="replace").split()
    except (FileNotFoundError, untrusted.Unreadable):
        noted = []
    return tuple(dict.fromkeys([*noted, *filter(None, [os.environ.get(NAME)])]))


def note_sweep(folder: Path) -> None:
    """Notes in the run's folder that the run belongs to the sweep that this process works for."""
    if sweeps := "".join(f"{each}\n" for each in sweeps_of(folder)):
        update_text(folder / SWEEPS, sweeps)
