"""What `executor=auto` remembers: measurements of a machine in the user's cache, choices in the run's folder, among
them the number of threads.
"""

import functools
import hashlib
import json
import logging
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedlab_runner.core.work import Work
from fedlab_runner.utils import checksummed_json as sealed
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.system import machine_cores

_log = logging.getLogger(__name__)
CHOICES = "executor.json"  # in the run's folder


class Cost(NamedTuple):
    """Seconds: of one local step, None where an executor cannot do the work; and once, to compile or warm up."""

    once: float
    a_step: float | None


class Memory:
    """Costs by kind of work for this machine, and the choices of one run once it is open."""

    def __init__(self) -> None:
        self._run: Path | None = None
        self._rounds: int | None = None

    def open(self, folder: Path, rounds: int) -> None:
        """From now on choices are noted in the run's folder."""
        self._run, self._rounds = folder / CHOICES, rounds

    def rounds_left(self, work: Work) -> int:
        """With the one that is at hand; 1 outside of a run."""
        return max(1, self._rounds - work.round) if self._rounds is not None else 1

    def choice(self, kind: str) -> str | None:
        """The name that this run has noted for such work, if it was on this machine."""
        noted = _read(self._run, "executor=auto chooses anew, so that the last digits may be others from here on")
        name = _ours(noted).get(kind)
        return name if isinstance(name, str) else None

    def choose(self, kind: str, name: str) -> None:
        """Notes a choice for when the run is continued."""
        if self._run is not None:
            noted = _read(self._run)
            noted[machine()] = _ours(noted) | {kind: name}
            write_text_atomically(self._run, sealed.text(noted))

    def costs(self, shape: str) -> dict[str, Cost]:
        """What is known of such work on this machine, with this code."""
        try:
            known = _ours(_read(_cache(), "executor=auto measures anew"), place()).get(shape, {})
            return {str(name): Cost(float(once), each and float(each)) for name, (once, each) in known.items()}
        except (AttributeError, TypeError, ValueError):  # not ours
            return {}

    def learn(self, shape: str, costs: dict[str, Cost]) -> None:
        """Remembers it, and no more what other code took here; a cache that cannot be written is no reason to stop."""
        known = _read(_cache())
        everything: dict[str, Any] = {key: each for key, each in known.items() if not key.startswith(machine())}
        everything[place()] = _ours(known, place()) | {shape: costs}
        try:
            write_text_atomically(_cache(), sealed.text(everything))
        except OSError as error:
            _log.warning("what was measured cannot be remembered in %s: %s", _cache(), error)


def noted_threads(folder: Path) -> int | None:
    """How many threads the run in this folder has noted, if it was on this machine."""
    noted = _read(folder / CHOICES, "threads and executor=auto are chosen anew, so that the last digits may differ")
    threads = _ours(noted, hardware()).get("threads")
    return threads if isinstance(threads, int) and threads >= 1 else None


def note_threads(folder: Path, threads: int) -> None:
    """For when the run is continued."""
    noted = _read(folder / CHOICES)
    write_text_atomically(folder / CHOICES, sealed.text(noted | {hardware(): {"threads": threads}}))


def kind_of(work: Work) -> str:
    """Work of one kind is carried out in one way throughout a run: model, minibatch and functions, but not how many
    clients happen to train, or how long.
    """
    family, local = work.family, work.local
    own = [f is not None for f in (work.loss, work.perturb, work.correct, work.per_step, work.offsets)]
    sizes = [family.num_params, family.num_buffers, family.has_batch_norm, len(work.per_client), len(work.ids) == 1]
    layers = [list(p.shape) for p in family.module.parameters()]
    examples = work.client_data
    inputs = [list(examples.inputs.shape[1:]), str(examples.inputs.dtype), str(family.dtype), str(examples.augment)]
    return digest(
        [own, sizes, layers, inputs, str(family.autocast), local.batch_size, local.optimizer, str(family.device)]
    )


def shape_of(work: Work) -> str:
    """The kind, and the size of the cohort and its work to a factor of two."""
    steps = work.num_steps.astype(np.float64)
    return f"{kind_of(work)}-{len(work.ids).bit_length()}-{int(np.ceil(np.log2(max(1.0, steps.mean()))))}"


def place() -> str:
    """What measurements are valid for: this machine, and this code, as another version may be slow where it is fast."""
    return f"{machine()}-{_code()}"


@functools.cache
def _code() -> str:
    """A digest of this package."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:12]


def machine() -> str:
    """What a choice is kept on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return _short(platform.node(), processor(), machine_cores(), torch.get_num_threads(), torch.__version__, gpu)


def hardware() -> str:
    """What a number of threads is kept on."""
    return _short(platform.node(), processor(), machine_cores())


def _short(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def processor() -> str:
    """Its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fedlab" / "executors.json"


def _ours(content: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    """What it has for this key (None: this machine)."""
    found = content.get(key or machine())
    return found if isinstance(found, dict) else {}


def _read(path: Path | None, otherwise: str | None = None) -> dict[str, Any]:
    """What the file holds; nothing where there is none, or a damaged one, with a warning if `otherwise` is given."""
    try:
        return sealed.read(path) if path is not None else {}
    except OSError:
        return {}
    except sealed.Damaged as fault:
        if otherwise is not None:
            _log.warning("%s %s: %s", path, fault, otherwise)
        return {}
