"""The memory of `executor=auto`: measurements of a machine in the user's cache, choices in the run's folder."""

import functools
import hashlib
import logging
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedlab_runner.core.work import Work
from fedlab_runner.executors._run_notes import NOTES_FILE, digest_of, mapping_at, processor, read_notes, write_notes
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.system import machine_cores

_log = logging.getLogger(__name__)


class Cost(NamedTuple):
    """The seconds that an executor needs for a kind of work."""

    once: float  # to compile or warm up
    a_step: float | None  # for one local step; None: the executor cannot do the work


class Memory:
    """The costs by kind of work on this machine, and the choices of one run once `open` was called."""

    def __init__(self) -> None:
        self._run: Path | None = None
        self._rounds: int | None = None

    def open(self, folder: Path, rounds: int) -> None:
        """From now on choices are noted in the folder of a run of so many rounds."""
        self._run, self._rounds = folder / NOTES_FILE, rounds

    def rounds_left(self, work: Work) -> int:
        """The rounds that are left, the round of this work included; 1 outside of a run."""
        return max(1, self._rounds - work.round) if self._rounds is not None else 1

    def choice(self, kind: str) -> str | None:
        """The name of the executor that this run has noted for a kind of work on this machine."""
        if self._run is None:
            return None
        noted = read_notes(self._run, "executor=auto chooses anew, so that the last digits may be others from here on")
        name = mapping_at(noted, machine()).get(kind)
        return name if isinstance(name, str) else None

    def choose(self, kind: str, name: str) -> None:
        """Notes the choice for a kind of work for when the run is continued."""
        if self._run is not None:
            noted = read_notes(self._run)
            write_notes(self._run, noted | {machine(): mapping_at(noted, machine()) | {kind: name}})

    def costs(self, shape: str) -> dict[str, Cost]:
        """The costs by executor that were measured for such work on this machine, with this code."""
        try:
            known = mapping_at(read_notes(_cache(), "executor=auto measures anew"), place()).get(shape, {})
            return {str(name): Cost(float(once), each and float(each)) for name, (once, each) in known.items()}
        except (AttributeError, TypeError, ValueError):  # another program's file
            return {}

    def learn(self, shape: str, costs: dict[str, Cost]) -> None:
        """Writes the costs into the cache, and forgets those of other code on this machine.

        A cache that cannot be written is a warning only.
        """
        known = read_notes(_cache())
        everything: dict[str, Any] = {key: each for key, each in known.items() if not key.startswith(machine())}
        everything[place()] = mapping_at(known, place()) | {shape: costs}
        try:
            write_notes(_cache(), everything)
        except OSError as error:
            _log.warning("the measurements cannot be written to %s: %s", _cache(), error)


def kind_of(work: Work) -> str:
    """A digest of model, minibatch and functions: a run has one executor for each kind of work.

    How many clients train, and for how many steps, does not matter; a single client is a kind of its own.
    """
    family, local = work.family, work.local
    own = [f is not None for f in (work.loss, work.perturb, work.correct, work.per_step, work.offsets)]
    sizes = [family.num_params, family.num_buffers, family.has_batch_norm, len(work.per_client), len(work.ids) == 1]
    layers = [list(p.shape) for p in family.module.parameters()]
    examples = work.client_data
    inputs = [list(examples.inputs.shape[1:]), str(examples.inputs.dtype), str(family.dtype), str(examples.augment)]
    return digest(
        [
            own,
            sizes,
            layers,
            inputs,
            str(family.autocast),
            work.frozen,
            local.batch_size,
            local.optimizer,
            str(family.device),
        ]
    )


def shape_of(work: Work) -> str:
    """The kind of work, with the number of clients and of steps to a factor of two."""
    steps = work.num_steps.astype(np.float64)
    return f"{kind_of(work)}-{len(work.ids).bit_length()}-{int(np.ceil(np.log2(max(1.0, steps.mean()))))}"


def place() -> str:
    """A digest of this machine and of this package's code, for which measurements are valid."""
    return f"{machine()}-{_code()}"


@functools.cache
def _code() -> str:
    """A digest of this package's code."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:12]


def machine() -> str:
    """A digest of the machine, its threads and its torch: a choice is kept while this stays the same."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return digest_of(platform.node(), processor(), machine_cores(), torch.get_num_threads(), torch.__version__, gpu)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fedlab" / "executors.json"
