"""Notes in a run's folder of what the run has chosen on a machine: its number of threads and its executors.

A run that is continued on the same machine finds its choices there, and so computes the same bits.
"""

import hashlib
import json
import logging
import platform
from pathlib import Path
from typing import Any

from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.system import machine_cores

_log = logging.getLogger(__name__)
NOTES_FILE = "executor.json"  # in the run's folder: choices by machine


def noted_threads(folder: Path) -> int | None:
    """The number of threads that the run in this folder has noted on this machine."""
    noted = read_notes(
        folder / NOTES_FILE, "threads and executor=auto are chosen anew, so that the last digits may differ"
    )
    threads = mapping_at(noted, hardware()).get("threads")
    return threads if isinstance(threads, int) and threads >= 1 else None


def note_threads(folder: Path, threads: int) -> None:
    """Notes the number of threads for when the run is continued."""
    path = folder / NOTES_FILE
    write_notes(path, read_notes(path) | {hardware(): {"threads": threads}})


def read_notes(path: Path, consequence: str | None = None) -> dict[str, Any]:
    """The content of a file of notes; empty where there is none or a damaged one, with a warning of the consequence."""
    try:
        return checksummed_json.read(path)
    except OSError:
        return {}
    except checksummed_json.Damaged as fault:
        if consequence is not None:
            _log.warning("%s %s: %s", path, fault, consequence)
        return {}


def write_notes(path: Path, notes: dict[str, Any]) -> None:
    """Replaces a file of notes."""
    write_text_atomically(path, checksummed_json.text(notes))


def mapping_at(notes: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping under a key; empty where there is none."""
    found = notes.get(key)
    return found if isinstance(found, dict) else {}


def hardware() -> str:
    """A digest of the machine's name, processor and usable cores."""
    return digest_of(platform.node(), processor(), machine_cores())


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def digest_of(*parts: object) -> str:
    """Twelve hex digits of some plain values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
