"""The memory of `executor=auto`: measurements in the user's cache, by type of machine."""

import functools
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedlab_runner.core.work import Work
from fedlab_runner.executors._autotune.measure import Cost
from fedlab_runner.executors._run_notes import machine_type, read_notes
from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.determinism import repeats_exactly
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.files import user_cache, write_text_atomically, write_text_once
from fedlab_runner.utils.precision import gpu_precisions

_log = logging.getLogger(__name__)
KEPT_SECONDS = 90 * 24 * 3600.0  # for which measurements are kept after the last one was added


def remembered(shape: str, stage: str) -> dict[str, Cost]:
    """The costs by executor for such work, in one stage, that this code has measured on this type of machine."""
    try:
        known = read_notes(_path(shape, stage), "executor=auto measures again")
        return {str(name): Cost(float(once), each and float(each)) for name, (once, each) in known.items()}
    except (AttributeError, TypeError, ValueError):  # not a file of this program
        return {}


def remember(shape: str, stage: str, costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """Keeps the costs of one stage of measurements, unless another process has kept some before, and returns the kept
    costs.

    Each stage of each shape of work has a file, which one process writes once and whole, so that writers do not disturb
    each other. For a cache that cannot be written there is only a warning.
    """
    path = _path(shape, stage)
    text = checksummed_json.text({name: list(cost) for name, cost in costs.items()})
    try:
        _forget_old(path.parents[1])
        if not write_text_once(path, text):
            if others := remembered(shape, stage):
                return others
            write_text_atomically(path, text)  # replaces a damaged file
    except OSError as error:
        _log.warning("the measurements cannot be written to %s: %s", path, error)
    return dict(costs)


def kind_of(work: Work) -> str:
    """A digest of model, minibatch and functions: a run has one executor for each kind of work.

    The numbers of clients and of steps do not matter, except that a single client is a kind of its own.
    """
    family, local = work.family, work.local
    added = work.loss, work.penalty, work.perturb, work.correct, work.per_step
    own = [work.offsets is not None, *(None if each is None else _name(each) for each in added)]
    sizes = [family.num_params, family.num_buffers, family.has_batch_norm, len(work.per_client), len(work.ids) == 1]
    layers = [list(p.shape) for p in family.module.parameters()]
    examples, device = work.client_data, family.device
    inputs = [list(examples.inputs.shape[1:]), str(examples.inputs.dtype), str(family.dtype), str(examples.augment)]
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    if device.type == "cuda":  # how it multiplies, and with which kernels
        place += f" {gpu_precisions()} {repeats_exactly()}"
    return digest(
        [own, sizes, layers, inputs, str(family.autocast), work.frozen, local.batch_size, local.optimizer, place]
    )


def _name(function: Callable[..., Any]) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def shape_of(work: Work) -> str:
    """The kind of work, with the numbers of clients and of steps up to a factor of two."""
    steps = work.num_steps.astype(np.float64)
    return f"{kind_of(work)}-{len(work.ids).bit_length()}-{int(np.ceil(np.log2(max(1.0, steps.mean()))))}"


def _path(shape: str, stage: str) -> Path:
    return (
        user_cache() / "executors" / f"{machine_type()}-{torch.get_num_threads()}-{_code()}" / f"{shape}-{stage}.json"
    )


def _forget_old(folder: Path) -> None:
    """Removes the measurements of other code and machines that are older than `KEPT_SECONDS`."""
    for each in folder.glob("*"):
        if each.is_dir() and each.stat().st_mtime < time.time() - KEPT_SECONDS:
            shutil.rmtree(each, ignore_errors=True)


@functools.cache
def _code() -> str:
    """A digest of this package's code."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:12]
