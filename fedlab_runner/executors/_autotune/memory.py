"""The memory of `executor=auto`: measurements by type of machine in the user's cache."""

import functools
import hashlib
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fedlab_runner.core.work import Work
from fedlab_runner.executors._autotune.measure import Cost
from fedlab_runner.executors._run_notes import machine_type, read_notes
from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.files import user_cache, write_text_atomically, write_text_once

_log = logging.getLogger(__name__)
KEPT_SECONDS = 90 * 24 * 3600.0  # without a new measurement, of this or other code; then they are forgotten


def remembered(shape: str, stage: str) -> dict[str, Cost]:
    """The costs by executor that were measured for such work, in one stage, on this type of machine with this code."""
    try:
        known = read_notes(_path(shape, stage), "executor=auto measures anew")
        return {str(name): Cost(float(once), each and float(each)) for name, (once, each) in known.items()}
    except (AttributeError, TypeError, ValueError):  # another program's file
        return {}


def remember(shape: str, stage: str, costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """Keeps the costs of one stage of measurements, and returns those that are kept: another process may have been
    first.

    Each stage of each shape of work has a file, which is written once and whole: writers do not disturb each other. A
    cache that cannot be written is a warning only.
    """
    path = _path(shape, stage)
    text = checksummed_json.text({name: list(cost) for name, cost in costs.items()})
    try:
        _forget_old(path.parents[1])
        if not write_text_once(path, text):
            if others := remembered(shape, stage):
                return others
            write_text_atomically(path, text)  # in the place of a damaged one
    except OSError as error:
        _log.warning("the measurements cannot be written to %s: %s", path, error)
    return dict(costs)


def kind_of(work: Work) -> str:
    """A digest of model, minibatch and functions: a run has one executor for each kind of work.

    How many clients train, and for how many steps, does not matter; a single client is a kind of its own.
    """
    family, local = work.family, work.local
    own = [f is not None for f in (work.loss, work.penalty, work.perturb, work.correct, work.per_step, work.offsets)]
    sizes = [family.num_params, family.num_buffers, family.has_batch_norm, len(work.per_client), len(work.ids) == 1]
    layers = [list(p.shape) for p in family.module.parameters()]
    examples, device = work.client_data, family.device
    inputs = [list(examples.inputs.shape[1:]), str(examples.inputs.dtype), str(family.dtype), str(examples.augment)]
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return digest(
        [own, sizes, layers, inputs, str(family.autocast), work.frozen, local.batch_size, local.optimizer, place]
    )


def shape_of(work: Work) -> str:
    """The kind of work, with the number of clients and of steps to a factor of two."""
    steps = work.num_steps.astype(np.float64)
    return f"{kind_of(work)}-{len(work.ids).bit_length()}-{int(np.ceil(np.log2(max(1.0, steps.mean()))))}"


def _path(shape: str, stage: str) -> Path:
    return (
        user_cache() / "executors" / f"{machine_type()}-{torch.get_num_threads()}-{_code()}" / f"{shape}-{stage}.json"
    )


def _forget_old(folder: Path) -> None:
    """Removes measurements of other code and machines to which nothing was added for long."""
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
