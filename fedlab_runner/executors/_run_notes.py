"""Notes, in a run's folder, of the threads, processes and executors that the run uses on a machine.

A run that continues on the same type of machine finds its choices there, and so computes the same bits.
"""

import hashlib
import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.system import machine_cores, processor

_log = logging.getLogger(__name__)
NOTES_FILE = "executor.json"  # in the run's folder: choices by type of machine
# The consequence of damaged notes, for a warning.
_DAMAGED = "threads and executor=auto are chosen again, so that the last digits may differ"


def noted(folder: Path) -> dict[str, Any]:
    """The notes of the run in this folder for this type of machine."""
    return mapping_at(read_notes(folder / NOTES_FILE), machine_type())


def noted_count(folder: Path, key: str) -> int | None:
    """The noted number under a key; None unless it is a whole number >= 1."""
    count = noted(folder).get(key)
    return count if isinstance(count, int) and count >= 1 else None


def noted_anywhere(notes: Path, key: str) -> dict[str, str]:
    """The texts that a file of notes has under a key. If several types of machines have notes, the first counts."""
    machines = [each for each in read_notes(notes).values() if isinstance(each, dict)]
    found = [mapping_at(each, key) for each in reversed(machines)]
    return {name: text for each in found for name, text in each.items() if isinstance(text, str)}


def note(folder: Path, **values: Any) -> None:
    """Notes values by key, besides those of other keys, for a continued run. Warns of a damaged file."""
    path, here = folder / NOTES_FILE, machine_type()
    notes = read_notes(path, _DAMAGED)
    if (before := mapping_at(notes, here)) != (now := before | values):
        write_text_atomically(path, checksummed_json.text(notes | {here: now}))


def read_notes(path: Path, consequence: str | None = None) -> dict[str, Any]:
    """The content of a file of notes; empty if it is missing or damaged. For a damaged file it warns of
    `consequence`.
    """
    try:
        return checksummed_json.read(path)
    except OSError:
        return {}
    except checksummed_json.Damaged as fault:
        if consequence is not None:
            _log.warning("%s %s: %s", path, fault, consequence)
        return {}


def mapping_at(notes: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping under a key; empty if the notes have none."""
    found = notes.get(key)
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=1)
def machine_type() -> str:
    """A digest of processor, cores and version of torch, on which choices depend. A cluster's nodes can share it."""
    parts = processor(), machine_cores(), torch.__version__
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
